"""Try the files of a release as a new user does: install them from an index of their own into a fresh
environment, verify them by the installed program, and pass the quick start."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cachesvc.queries.release import NAMESPACE, SUFFIX
from cachesvc_client.bundle.seal import PublicKey

from .release_files import run

TORCH = os.environ.get("TORCH", "torch==2.13.0")
"""The torch that the quick start compiles with; the Makefile names it."""


def steps(dist: Path, place: Path, key: PublicKey | None) -> Iterator[str]:
    """Do what a new user does with a folder of released files, below ``place``; yield a line for each step.
    ``key``: of whom they have the files; ``None`` for a release without a signature."""
    run(sys.executable, "-m", "venv", "--without-pip", place)
    python = place / "bin/python"
    with index(dist, place / "index") as url:
        install(python, ["cachesvc-client", "cachesvc"], "--index-url", url, extras=("server",), also=[TORCH])
    yield "installed from an index of the wheels, into an empty environment"
    user = {
        "HOME": str(place / "home"),
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "LANG": "C.UTF-8",
    }
    (place / "home").mkdir()
    if key is not None:
        [statement] = dist.glob(f"cachesvc-*{SUFFIX}")
        trust = {"CACHESVC_TRUSTED_KEYS": f"{NAMESPACE}={key}"}
        yield run(place / "bin/cachesvc", "verify", statement.resolve(), cwd=place, env=user | trust).strip()
    said = run(place / "bin/cachesvc", "quickstart", place / "quickstart", cwd=place, env=user)
    if "The second start compiled nothing." not in said:
        raise AssertionError(said)
    yield "quick start: the second start compiled nothing"


def install(
    python: Path, ours: Sequence[str], *where: object, extras: Sequence[str] = (), also: Sequence[str] = ()
) -> None:
    """Install our distributions into an environment, from the index that pip's options ``where`` name and
    from nowhere else; then what they require, and ``also``, from the index that pip is configured with.

    A package of our name in that index is not asked for."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "--isolated", "install", "-q", *where, "--no-deps", *ours)
    run(*pip, "install", "-q", *requirements(python, ours, extras), *also)
    run(*pip, "check")


def requirements(python: Path, ours: Sequence[str], extras: Sequence[str]) -> list[str]:
    """Return what installed distributions require of others, with these extras."""
    code = f"import importlib.metadata as m; print(*(r for n in {ours!r} for r in m.requires(n)), sep='\\n')"
    lines = [line for line in run(python, "-I", "-c", code).splitlines() if not line.startswith("cachesvc")]
    of_extras = [f'extra == "{extra}"' for extra in extras]
    wanted = [line for line in lines if "extra ==" not in line or any(extra in line for extra in of_extras)]
    return [line.partition(";")[0] if "extra ==" in line else line for line in wanted]


@contextmanager
def index(dist: Path, root: Path) -> Iterator[str]:
    """Serve an index of the wheels in a folder, as PEP 503 describes it, on loopback. Yield its address."""
    for wheel in dist.glob("*.whl"):
        project = root / "simple" / wheel.name.split("-")[0].replace("_", "-")
        project.mkdir(parents=True)
        (project / wheel.name).symlink_to(wheel.resolve())
        (project / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel.name}">{wheel.name}</a>\n')
    handler = functools.partial(_Quiet, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Write no line for each request."""
