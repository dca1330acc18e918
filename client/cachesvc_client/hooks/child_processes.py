"""How the Python processes that this one starts are reached, and the log in which they tell what they start.

``every_process`` on PYTHONPATH reaches an interpreter wherever the client is importable; the .pth file
reaches those that ignore PYTHONPATH. Inductor's compile workers get ``sys.path`` as their PYTHONPATH
(``torch/_inductor/utils.py``, ``python_subprocess_env``), so for them the folder must be there too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from pathlib import Path

EVERY_PROCESS = Path(__file__).parents[1] / "every_process"
"""Holds only ``sitecustomize.py``."""
OBSERVE = "CACHESVC_OBSERVE"
"""The log's path: whoever finds it lists there what it starts. Never set in services."""
_LONGEST_NAME = 1024


def python_path(present: str) -> str:
    """A PYTHONPATH with our folder first, once."""
    kept = [path for path in present.split(os.pathsep) if path]
    first = str(EVERY_PROCESS)
    return os.pathsep.join([first, *(path for path in kept if path != first)])


def open_log() -> Path:
    """A new log, which every Python child from now on appends to; it goes away with this process.

    Changes ``os.environ`` and ``sys.path``. Raises ``OSError`` if there is no place for a file.
    """
    import tempfile

    handle, name = tempfile.mkstemp(prefix="cachesvc-observe-")
    os.close(handle)
    os.environ[OBSERVE] = name
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH", ""))
    lead()
    atexit.register(_remove, name, os.getpid())
    return Path(name)


def lead() -> None:
    """Our folder on ``sys.path``, ahead of any other sitecustomize and behind the program's own folder."""
    if str(EVERY_PROCESS) not in sys.path:
        sys.path.insert(min(1, len(sys.path)), str(EVERY_PROCESS))


def _remove(name: str, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(name)


def append(log: Path, program: str) -> None:
    """One line, whole beside those of other processes (O_APPEND). Never raises: it is called while a
    process is being started, by children that may outlive the log."""
    line = " ".join(program[:_LONGEST_NAME].splitlines()) + "\n"
    with contextlib.suppress(OSError):
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(handle, os.fsencode(line))
        finally:
            os.close(handle)


def started(log: Path) -> list[str]:
    """What children started so far, oldest first; nothing if the log is gone."""
    try:
        return [os.fsdecode(line) for line in log.read_bytes().split(b"\n")[:-1]]
    except OSError:
        return []
