"""Import the user's code, and report its errors in one line. Imports no torch."""

from __future__ import annotations

import sys

from ..spec.plan import Job


class UserCodeError(Exception):
    """The user's code failed; the text says how, in one line."""


def one_line(error: object) -> str:
    """Return the type and the first line of an exception that has text; of anything else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0][:300] if lines else ""
    return f"{type(error).__name__}: {text}" if isinstance(error, BaseException) else text


def add_import_paths(job: Job) -> None:
    """Add the folders from which factories are imported: the declared ones, then the spec's."""
    for folder in reversed([*job.spec.paths, job.folder]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
