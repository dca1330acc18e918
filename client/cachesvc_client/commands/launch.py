"""``run NAME -- command``: the command with every Python process of its job attached."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..hooks.child_processes import python_path


def environment(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with ``variables`` set, and our folder first on PYTHONPATH (once).

    Two ways lead in, since either may be closed: the .pth file needs the client in the interpreter's
    own site-packages, PYTHONPATH is ignored under -E and -I.
    """
    return {**environ, **variables, "PYTHONPATH": python_path(environ.get("PYTHONPATH", ""))}


def launch(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Becomes the command: same process, signals, standard streams and exit status.

    If that cannot be started, exits as a shell does, with one line: 127 not found, 126 not executable.
    """
    made = environment(variables, os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), made)
    except FileNotFoundError:
        print(f"error: {command[0]}: command not found", file=sys.stderr)
        sys.exit(127)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(126)
