"""Tells whether the file of a library is whole: a process that loads one that is cut short is killed."""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct("<4sB27xQ14xHH6x")
"""Magic number and class; where the program headers begin, the size of each, and how many there are."""
_SEGMENT = struct.Struct("<I4xQ16xQ")
"""Type; where the content begins in the file, and how long it is there."""
_LOADED = 1
_64_BITS = 2


def is_whole(path: Path) -> bool:
    """Return whether each segment that the loader maps lies in the file. Raise nothing.

    The loader maps them without a look at the size of the file, and the kernel ends the process at the first
    access behind its end.
    """
    try:
        with open(path, "rb") as file:
            magic, bits, begin, size, number = _HEADER.unpack(file.read(_HEADER.size))
            if magic != b"\x7fELF" or bits != _64_BITS or size < _SEGMENT.size:
                return False
            file.seek(begin)
            headers = file.read(size * number)
            segments = [_SEGMENT.unpack_from(headers, size * each) for each in range(number)]
            end = max((offset + length for kind, offset, length in segments if kind == _LOADED), default=0)
            return 0 < end <= file.seek(0, 2)
    except (OSError, struct.error):
        return False
