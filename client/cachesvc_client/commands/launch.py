"""Owns ``run NAME -- command``: it starts the command with every Python process of its job attached."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..hooks.child_processes import python_path
from ..wire.errors import printable
from .attach_check import why_not_attached


def environment(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` with ``variables`` set, and the client's folder first on PYTHONPATH (once).

    PYTHONPATH and the .pth file both attach an interpreter, since either may fail: the .pth file needs the
    client in the interpreter's own site-packages, and Python ignores PYTHONPATH under -E and -I.
    """
    return {**environ, **variables, "PYTHONPATH": python_path(environ.get("PYTHONPATH", ""))}


def launch(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command, with every Python process of it attached; see `execute`."""
    environ = environment(variables, os.environ)
    if why := why_not_attached(command, environ):
        print(printable(f"cachesvc: {why}"), file=sys.stderr)
    execute(command, environ)


def execute(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command: same process id, signals, standard streams and exit status.

    If the command cannot be started, exit as a shell does, with one line: 127 if it is not found, 126 if it
    is not executable.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), dict(environ))
    except FileNotFoundError:
        print(printable(f"error: {command[0]}: command not found"), file=sys.stderr)
        sys.exit(127)
    except OSError as error:
        print(printable(f"error: {command[0]}: {error.strerror}"), file=sys.stderr)
        sys.exit(126)
