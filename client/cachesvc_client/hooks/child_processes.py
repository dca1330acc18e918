"""Lists the processes that this process and its Python children start, for `warm` and tests.

An audit hook sees each start. A child writes its own starts to a log that its parent reads.

``every_process`` on PYTHONPATH reaches an interpreter wherever the client is importable; the .pth file
reaches the interpreters that ignore PYTHONPATH. Inductor's compile workers get ``sys.path`` as their
PYTHONPATH (``torch/_inductor/utils.py``, ``python_subprocess_env``), so the folder must be on ``sys.path``
for them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

EVERY_PROCESS = Path(__file__).parents[1] / "every_process"
"""Folder that has only ``sitecustomize.py``."""
OBSERVE = "CACHESVC_OBSERVE"
"""Variable with the path of the log: a Python process that has it lists there what it starts. Services never
have it."""
SYNTAX_ONLY = "-fsyntax-only"
"""Option with which a compiler reads a source and makes nothing."""
_LONGEST_NAME = 1024
"""Characters of a program's name in the log, at most."""

_programs: list[str] = []
"""Programs that this process has started, in the order of their starts."""
_lister = 0
"""Id of the process that lists its starts in memory; its forks and other children list theirs in the log."""
_log_file: Path | None = None
"""The log of the children's starts; ``None`` before `listen` or `follow`."""


def listen() -> None:
    """List from now on what this process and its Python children start; PYTHONPATH and CACHESVC_OBSERVE
    reach the children. An audit hook cannot be taken off again.

    A second call changes nothing. Raises ``OSError`` if there is no place for the log.
    """
    global _lister, _log_file
    if _log_file is None:
        _lister, _log_file = os.getpid(), _open_log()
        sys.addaudithook(_audit)


def follow(log: str) -> None:
    """List what this process starts in the log of its parent; for `bootstrap`. Counts nothing here."""
    global _log_file
    if _log_file is None:
        _log_file = Path(log)
        _put_on_path()
        sys.addaudithook(_audit)


def started_here() -> list[str]:
    """Return the programs that this process has started, oldest first."""
    return _programs


def started_by_children() -> list[str]:
    """Return the programs that Python children have started, oldest first; none if the log is gone."""
    if _log_file is None:
        return []
    try:
        return [os.fsdecode(line) for line in _log_file.read_bytes().split(b"\n")[:-1]]
    except OSError:
        return []


def python_path(present: str) -> str:
    """Return a PYTHONPATH with the client's folder first, once."""
    others = [path for path in present.split(os.pathsep) if path]
    first = str(EVERY_PROCESS)
    return os.pathsep.join([first, *(path for path in others if path != first)])


def program_name(program: str, command: Any) -> str:
    """Return the name that is listed for a started program.

    A compiler that is asked for its version, or whether it runs, compiles nothing, so the name says it.
    Triton asks ptxas, whose version is in every kernel's key (``triton/backends/nvidia/compiler.py``), and
    cachesvc an unknown compiler (`environment.cxx`).
    """
    words = [_text(word) for word in command] if isinstance(command, (list, tuple)) else []
    if words[1:] == ["--version"]:
        return f"{program} --version"
    return f"{program} {SYNTAX_ONLY}" if SYNTAX_ONLY in words else program


def _open_log() -> Path:
    """Make a log for the children, and set the variables and ``sys.path`` that reach them. The end of this
    process removes the log."""
    import tempfile

    handle, name = tempfile.mkstemp(prefix="cachesvc-observe-")
    os.close(handle)
    os.environ[OBSERVE] = name
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH", ""))
    _put_on_path()
    atexit.register(_remove, name, os.getpid())
    return Path(name)


def _put_on_path() -> None:
    """Put the client's folder on ``sys.path``, before every other sitecustomize and after the program's own
    folder."""
    if str(EVERY_PROCESS) not in sys.path:
        sys.path.insert(min(1, len(sys.path)), str(EVERY_PROCESS))


def _remove(name: str, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(name)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.posix_spawn" and _is_called_by_subprocess():
        return  # the start was seen as subprocess.Popen
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        _record(program_name(_text(arguments[0]), arguments[1]))
    elif event == "os.system":
        _record(_text(arguments[0]).split(" ")[0])


def _is_called_by_subprocess() -> bool:
    """Whether the audited call is a line of the module subprocess, which spawns where it can: without
    close_fds, and on Python 3.13 in most calls."""
    return sys._getframe(2).f_globals.get("__name__") == "subprocess"


def _record(program: str) -> None:
    if os.getpid() == _lister:
        _programs.append(program)
    elif _log_file is not None:
        _append(_log_file, program)


def _append(log: Path, program: str) -> None:
    """Append one line, whole beside the lines of other processes (O_APPEND). Never raises: it runs while a
    process is being started, in children that may outlive the log."""
    line = " ".join(program[:_LONGEST_NAME].splitlines()) + "\n"
    with contextlib.suppress(OSError):
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(handle, os.fsencode(line))
        finally:
            os.close(handle)


def _text(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value)
