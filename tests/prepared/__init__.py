"""Start programs without their imports: in forks of an interpreter that has imported their modules already.

Importing torch and Inductor takes four of the five seconds of CPU time of a restored service. A test may
spare them unless it is about what comes before the imports, about the time of a start, or the proof that a
fresh process compiles nothing: such tests start Python.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import command

HERE = Path(__file__).parent
COMPILES = ("torch", "torch._inductor.compile_fx")
"""Modules of a service that compiles."""
SERVES = (
    *("cachesvc.cli.serve", "cachesvc.cli.serving.server", "cachesvc.cli.client", "cachesvc.bootstrap"),
    *(
        "cachesvc.api.app",
        "cachesvc.registry.startup",
        "cachesvc.registry.upkeep.retention",
        "cachesvc.blobs.s3",
    ),
    *("cachesvc.hot.redis", "cachesvc.oidc.workload", "cachesvc_client.trust_root.registry_metadata"),
    *(
        "alembic.command",
        "alembic.runtime.migration",
        "boto3.session",
        "psycopg",
        "uvicorn.protocols.http.h11_impl",
    ),
    *(
        "uvicorn.lifespan.on",
        "uvicorn.loops.asyncio",
        "encodings.idna",
        "sqlalchemy.dialects.sqlite.pysqlite",
    ),
)
"""Modules of the registry, and of the commands that ask it."""


def prepared_variables() -> dict[str, str]:
    """Return variables with which Python runs its program in a prepared interpreter, and so do those that it
    starts with them, see `command`."""
    return {"PYTHON_PREPARED": folder_of_the_run()}


def prepared_python(modules: tuple[str, ...], environ: Mapping[str, str]) -> list[str]:
    """Return a command that stands for Python with these variables, for ``-m``, ``-c`` and a program's file.

    The process of the command is not the process of the program: its memory and its files are another's.
    """
    folder = folder_of_the_run()
    address = command.interpreter(folder, modules, environ)
    assert address
    return [sys.executable, "-I", "-S", f"{folder}/command.py", address]


def folder_of_the_run() -> str:
    """Return the folder of the interpreters, which the first process of a run makes and removes: pytest's
    own, before its workers. A run within a run that imports another tree has its own."""
    run_file = Path(os.environ.get("PREPARED_FOLDER", "/nonexistent"), "run.json")
    folder, tree = run_file.parent, os.environ.get("PYTHONPATH")
    if not run_file.exists() or json.loads(run_file.read_text())["variables"].get("PYTHONPATH") != tree:
        folder = Path(tempfile.mkdtemp(prefix="prepared-"))
        variables = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        run = {"compiles": COMPILES, "serves": SERVES, "variables": variables, "owner": os.getpid()}
        (folder / "run.json").write_text(json.dumps(run))
        for name in ("command.py", "interpreter.py"):
            (folder / name).symlink_to(HERE / name)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["PREPARED_FOLDER"] = str(folder)
    return str(folder)
