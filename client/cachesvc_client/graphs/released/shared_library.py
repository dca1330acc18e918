"""Reads a shared library's headers (ELF, 64 bits): where its content lies, and which names it refers to."""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple

LOADED = 1
"""The kind of a segment that the loader maps."""
_DYNAMIC = 2
"""The kind of the segment that says where the names are."""
_HEADER = struct.Struct("<4sB27xQ14xHH6x")
"""Magic number and class; where the program headers begin, the size of each, and how many there are."""
_SEGMENT = struct.Struct("<I4xQQ8xQ")
_ENTRY = struct.Struct("<QQ")
_NAMES, _LENGTH = 5, 10
"""Tags (``DT_STRTAB``, ``DT_STRSZ``) of the address and the length of the names."""
_64_BITS = 2
_MOST_NAMES = 256 << 20
"""Bytes of names that are read at most."""


class Segment(NamedTuple):
    """Is a part of a library: its kind, where its content begins in the file and in memory, and how many
    bytes of the file it has."""

    kind: int
    offset: int
    address: int
    size: int


def segments(file: BinaryIO) -> list[Segment]:
    """Return the parts of a library. Raises ``ValueError`` or ``struct.error`` for other files."""
    file.seek(0)
    magic, bits, begin, size, number = _HEADER.unpack(file.read(_HEADER.size))
    if magic != b"\x7fELF" or bits != _64_BITS or size < _SEGMENT.size:
        raise ValueError("no ELF file of 64 bits")
    file.seek(begin)
    headers = file.read(size * number)
    return [Segment(*_SEGMENT.unpack_from(headers, size * each)) for each in range(number)]


def names(file: BinaryIO) -> bytes:
    """Return the names of functions and libraries that a library has or needs, each with a zero at its end.

    Raises ``ValueError`` or ``struct.error`` where they cannot be found.
    """
    parts = segments(file)
    entries: dict[int, int] = {}
    for part in parts:
        if part.kind == _DYNAMIC:
            file.seek(part.offset)
            content = file.read(part.size)
            entries |= dict(_ENTRY.iter_unpack(content[: len(content) // _ENTRY.size * _ENTRY.size]))
    address, length = entries.get(_NAMES), entries.get(_LENGTH, 0)
    for part in parts:
        if part.kind == LOADED and address is not None and 0 <= address - part.address < part.size:
            file.seek(part.offset + address - part.address)
            return file.read(min(length, _MOST_NAMES))
    raise ValueError("no names")
