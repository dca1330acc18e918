"""Read from a kernel's binary what the driver says of it once it is loaded.

A cubin is an ELF file. Its section ``.nv.info`` is a list of attributes: the number of registers of each
kernel is one, and the size of its frame in local memory, to which registers are spilled. The numbers are
those of cuobjdump; a driver's were not compared.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_ATTRIBUTE = struct.Struct("<BBH")
_WITH_BYTES = 4
"""Form of an attribute whose value follows it; of other forms the size is the value."""
_REGISTERS, _FRAME = 0x2F, 0x11
"""Numbers of the attributes for the count of registers and for the bytes of the frame, of one symbol each."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Says what one thread of a kernel needs. ``registers``: their number. ``spills``: numbers of 4 bytes in
    local memory."""

    registers: int
    spills: int


def kernel_use(path: Path, kernel: str) -> KernelUse:
    """Return what the kernel in a cubin needs. Raises ``ValueError`` if the file does not say it."""
    data = path.read_bytes()
    try:
        sections = _sections(data)
        names = [name for name in sections if name == f".text.{kernel}"]
        attributes = _attributes(data, sections[".nv.info"])
    except (struct.error, IndexError, KeyError) as error:
        raise ValueError(f"{path.name}: no cubin that is understood: {error!r}") from None
    if len(names) != 1 or set(attributes) != {_REGISTERS, _FRAME}:
        raise ValueError(f"{path.name} does not say what {kernel[:100]} needs")
    return KernelUse(attributes[_REGISTERS], attributes[_FRAME] // 4)


def _attributes(data: bytes, place: tuple[int, int]) -> dict[int, int]:
    """Return the greatest value of the two attributes, by their numbers."""
    at, end = place[0], place[0] + place[1]
    found: dict[int, int] = {}
    while at < end:
        form, number, size = _ATTRIBUTE.unpack_from(data, at)
        at += _ATTRIBUTE.size
        if form != _WITH_BYTES:
            continue
        if number in (_REGISTERS, _FRAME):
            _symbol, value = struct.unpack_from("<II", data, at)
            found[number] = max(found.get(number, 0), value)
        at += size
    return found


def _sections(data: bytes) -> dict[str, tuple[int, int]]:
    """Return offset and size of each section by its name."""
    header = _HEADER.unpack_from(data)
    if header[0][:5] != b"\x7fELF\x02":
        raise struct.error("another format")
    offset, size, count, names_at = header[6], header[11], header[12], header[13]
    rows = [_SECTION.unpack_from(data, offset + number * size) for number in range(count)]
    names = rows[names_at][4]
    found = {}
    for row in rows:
        begin = names + row[0]
        found[data[begin : data.index(b"\0", begin)].decode("ascii", "replace")] = (row[4], row[5])
    return found
