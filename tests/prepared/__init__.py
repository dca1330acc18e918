"""Start programs without their imports: in forks of an interpreter that has imported their modules already.

Importing torch and Inductor takes four of the five seconds of CPU time of a restored service. A test may
spare them unless it is about what comes before the imports, about the time of a start, or the proof that a
fresh process compiles nothing: such tests start Python.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

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
READ_ONCE = ("TORCHINDUCTOR_", "TORCH_", "TRITON_", "OMP_", "ATEN_", "PYTHON", "CI", "CXX", "LD_PRELOAD")
"""Beginnings of the variables that torch and Python read once: those of an interpreter are those of its
programs."""
INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHON_COLLECT_RARELY")
"""Variables that an interpreter has from this process. The last one lets it import the very tree under test,
where that is not the one that is installed."""
HEADERS, USER = "HEADERS_OF_TESTS", "somebody"
"""The variable that names a TMPDIR, and the user: the processes of a run of tests share the precompiled
headers of PyTorch's default cache folder there. With them a kernel compiles in a third of the time."""
READ_LATER = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PYTHONPATH")
"""Variables with such a prefix that are read when they are needed."""


def prepared_python(modules: tuple[str, ...], environ: Mapping[str, str]) -> list[str]:
    """Return a command that stands for Python with these variables, for ``-m``, ``-c`` and a program's file.

    The process of the command is not the process of the program: its memory and its files are another's.
    """
    read_once = {
        name: value
        for name, value in environ.items()
        if name.startswith(READ_ONCE) and name not in READ_LATER
    }
    address = _interpreter(modules, frozenset(read_once.items()))
    return [sys.executable, "-I", "-S", str(HERE / "command.py"), address]


def share_headers(place: Path) -> None:
    """Link the precompiled headers that a host with this TMPDIR makes to those of the run."""
    shared = run_headers()
    own = place / shared.parent.name
    own.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        own.joinpath(shared.name).symlink_to(shared)


@cache
def run_headers() -> Path:
    """Return the folder of the precompiled headers of this run of tests. It ends with the process that asked
    first; the processes that this one starts have the same folder."""
    if HEADERS not in os.environ:
        os.environ[HEADERS] = tempfile.mkdtemp(prefix="headers-")
        atexit.register(shutil.rmtree, os.environ[HEADERS], ignore_errors=True)
    folder = Path(os.environ[HEADERS], f"torchinductor_{USER}", "precompiled_headers")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _interpreter(modules: tuple[str, ...], read_once: frozenset[tuple[str, str]]) -> str:
    """Return the address of an interpreter, which is started once in a process of tests and ends with it."""
    folder = tempfile.mkdtemp(prefix="prepared-")
    address = os.path.join(folder, "socket")
    environ = {name: os.environ[name] for name in INHERITED if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "interpreter.py"), address, *modules],
        env={**environ, "TMPDIR": str(run_headers().parents[1]), "USER": USER, **dict(read_once)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    stdin = process.stdin

    def end() -> None:
        stdin.close()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    assert process.stdout.readline() == "ready\n"
    return address
