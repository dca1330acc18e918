"""Checks whether the interpreter of a command attaches by itself: another sitecustomize may go first, such as
that of an agent that watches programs, and run none behind it. Then nobody in the program could say so."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

REMEDY = "install cachesvc-client with pip into that Python, or call cachesvc_client.attach()"
_PYTHON = re.compile(r"python[0-9.]*t?")
_FLAGS = re.compile(r"-[a-zA-Z]*[IES][a-zA-Z]*")
_RUN_WORDS = (("run",), ("run-program",))
"""Words with which the launchers of agents and of environments run a program on this machine, at once."""
_ASK = (
    "import sys; print('\\nattaches', 'cachesvc_client.bootstrap' in sys.modules, "
    "getattr(sys.modules.get('sitecustomize'), '__file__', None) or '')"
)
_SECONDS = 20


class Start(NamedTuple):
    """Says what an interpreter did at its start. ``first``: the sitecustomize that went first, if any."""

    attaches: bool
    first: str


def look_at_start(command: Sequence[str], environ: Mapping[str, str]) -> Start | None:
    """Start an interpreter by these words, and return whether it attaches where a variable asks for it;
    ``None`` if it does not say. The process that is asked only observes: it attaches to nothing."""
    asked = {name: value for name, value in environ.items() if not name.startswith("CACHESVC_")}
    try:
        done = subprocess.run(
            [*command, "-c", _ASK],
            env={**asked, "CACHESVC_OBSERVE": os.devnull},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.search(r"^attaches (True|False) ?(.*)$", done.stdout, re.MULTILINE)
    return Start(said[1] == "True", said[2]) if said else None


def why_not_attached(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return in one line why the Python of a command would not attach; empty if it does, or cannot be asked.

    Asked are an interpreter, and one behind a program that is written in Python, as agents' launchers are. No
    other program is started twice: it may start a job, or a container.
    """
    words = _interpreter(command, environ)
    if len(words) == 1 and shutil.which(words[0]) == sys.executable and has_pth():
        return ""  # this interpreter, which runs the .pth file before any sitecustomize
    start = look_at_start(words, environ) if words else None
    if start is None or start.attaches:
        return ""
    if _is_others(start.first):
        return f"{words[-1]} does not attach: {start.first} goes first and does not run ours ({REMEDY})"
    return f"{' '.join(words)} does not attach: it reads no PYTHONPATH, or finds no client there ({REMEDY})"


def has_pth() -> bool:
    """Return whether the .pth file lies in a folder where this interpreter reads it."""
    folders = {*site.getsitepackages(), *((site.getusersitepackages(),) if site.ENABLE_USER_SITE else ())}
    return any(Path(folder, "cachesvc_client_bootstrap.pth").exists() for folder in folders)


def goes_first(start: Start) -> str:
    """Return the sitecustomize behind which ours lies on the path and was not run; empty if there is none."""
    from ..hooks.child_processes import EVERY_PROCESS

    here = {os.path.abspath(path) for path in sys.path}
    behind = str(EVERY_PROCESS) in here or str(EVERY_PROCESS) in os.environ.get("PYTHONPATH", "")
    return start.first if behind and not start.attaches and _is_others(start.first) else ""


def _is_others(sitecustomize: str) -> bool:
    from ..hooks.child_processes import EVERY_PROCESS

    return bool(sitecustomize) and Path(sitecustomize).parent != EVERY_PROCESS


def _interpreter(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the words that start the interpreter of a command, with the flags that decide what it reads;
    none if it is not to be asked."""
    named = (number for number, word in enumerate(command) if _PYTHON.fullmatch(os.path.basename(word)))
    at = next(named, None)
    before = command[1:at]
    if at is None or (before and tuple(before) not in _RUN_WORDS):
        return []
    if at > 0 and not _is_python_script(command[0], environ):
        return []
    end = at + 1
    while end < len(command) and _FLAGS.fullmatch(command[end]):
        end += 1
    return list(command[:end])


def _is_python_script(program: str, environ: Mapping[str, str]) -> bool:
    found = shutil.which(program, path=environ.get("PATH"))
    try:
        with open(found or program, "rb") as file:
            return bool(re.match(rb"#!.*python", file.readline(200)))
    except OSError:
        return False
