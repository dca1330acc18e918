"""Tells whether the file of a library is whole: a process that loads one that is cut short is killed."""

from __future__ import annotations

import struct
from pathlib import Path

from ..graphs.released.shared_library import LOADED, segments


def is_whole(path: Path) -> bool:
    """Return whether each segment that the loader maps lies in the file. Raise nothing.

    The loader maps them without a look at the size of the file, and the kernel ends the process at the first
    access behind its end.
    """
    try:
        with open(path, "rb") as file:
            ends = [part.offset + part.size for part in segments(file) if part.kind == LOADED]
            return 0 < max(ends, default=0) <= file.seek(0, 2)
    except (OSError, ValueError, struct.error):
        return False
