"""Keep a job of GitHub as it was while the code of models ran in it.

The runner reads files after each step: variables and folders of programs for the steps that follow, and what
the step says. The models' code is the same user's, so it can write there. So whatever it started is ended,
also what left its session, and then these files get what they had before.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_FILES = ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE", "GITHUB_STEP_SUMMARY")
"""Variables that name the files which the runner reads after a step."""
_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def guarded_job(environ: Mapping[str, str]) -> Iterator[None]:
    """Guard a block in which the code of models runs. Do nothing outside of a job of GitHub."""
    before: dict[Path, bytes] = {}
    for path in (Path(environ[name]) for name in _FILES if environ.get(name)):
        with contextlib.suppress(OSError):
            before[path] = path.read_bytes()
    if not before:
        yield
        return
    children = set(_children())
    if sys.platform == "linux":  # whatever loses its parent becomes a child of this process
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _end_all_but(children)
        for path, data in before.items():
            path.unlink(missing_ok=True)  # a link may be in its place
            path.write_bytes(data)


def _end_all_but(kept: set[int]) -> None:
    """End the children of this process, and theirs, which become its own then."""
    while found := set(_children()) - kept:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)


def _children() -> Iterator[int]:
    """Yield the children of this process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):  # it ended meanwhile
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                yield int(folder.name)
