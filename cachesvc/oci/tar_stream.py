"""Reads tar files that nobody has signed, and writes tar files that are the same for the same content.

The standard library's reader takes an extended header of any size into memory, and does more than is wanted
here: links, devices, sparse files. This reader knows regular files and folders, bounds everything before it
allocates, and raises ``Corrupt`` for the rest. Format: POSIX.1-2017, pax; the long names of GNU tar.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from cachesvc_client.wire.errors import Corrupt

BLOCK = 512
"""Number of bytes of a header; content is filled up to a multiple of it."""
END = bytes(2 * BLOCK)
"""The end of a tar file."""
MAX_EXTENDED = 64 << 10
"""Largest number of bytes of an extended header or a long name."""
MAX_NAME = 4096
"""Largest number of characters of a name."""
_CHUNK = 1 << 20
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
}
"""Types of entries that are refused, in words."""


class Source(Protocol):
    """Gives the bytes of a tar file from front to back."""

    def read(self, size: int, /) -> bytes:
        """Returns up to ``size`` bytes; none at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """Describes a regular file or a folder. ``offset``: position of its content in the tar file."""

    name: str
    size: int
    folder: bool
    offset: int


class TarReader:
    """Reads a tar file once, front to back. ``what``: begins messages. ``max_entries``: largest number of
    entries."""

    def __init__(self, source: Source, what: str, max_entries: int) -> None:
        self._source, self._what, self._max_entries = source, what, max_entries
        self._position = 0
        self._left = 0
        """Bytes of the present entry's content, filled up, that were not read."""
        self._unread = 0
        """The same without the filling."""

    def entries(self) -> Iterator[Entry]:
        """Yields each regular file and folder. Raises ``Corrupt`` for any other entry."""
        name: str | None = None
        size: int | None = None
        count = 0
        while (header := self._header()) is not None:
            kind, count = header[156:157], count + 1
            if count > self._max_entries:
                raise Corrupt(f"{self._what}: more than the {self._max_entries} entries allowed")
            if kind in (b"L", b"x", b"g"):
                data = self._extended(_number(header[124:136], self._what))
                if kind == b"L":
                    name = _text(data.rstrip(b"\0"), self._what)
                elif kind == b"x":
                    fields = _pax(data, self._what)
                    name = fields.get("path", name)
                    size = int(fields["size"]) if "size" in fields else size
                continue
            entry = self._entry(header, kind, name, size)
            self._unread = 0 if entry.folder else entry.size
            self._left = self._unread + -self._unread % BLOCK
            yield entry
            self._skip()
            name = size = None

    def content(self) -> Iterator[bytes]:
        """Yields the content of the entry that `entries` has just yielded."""
        while self._unread:
            chunk = self._take(min(_CHUNK, self._unread))
            self._unread -= len(chunk)
            self._left -= len(chunk)
            yield chunk

    def _header(self) -> bytes | None:
        """Returns the next header; ``None`` at the end of the tar file."""
        header = self._source.read(BLOCK)
        self._position += len(header)
        if not header or not header.strip(b"\0"):
            return None
        if len(header) < BLOCK:
            raise Corrupt(f"{self._what}: ends within a header")
        total = sum(header[:148]) + sum(header[156:]) + 8 * ord(" ")
        if _number(header[148:156], self._what) != total:
            raise Corrupt(f"{self._what}: a header without its checksum")
        return header

    def _entry(self, header: bytes, kind: bytes, name: str | None, size: int | None) -> Entry:
        if name is None:
            name = _text(header[:100].partition(b"\0")[0], self._what)
            prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
            name = f"{_text(prefix, self._what)}/{name}" if prefix else name
        if kind not in (b"0", b"\0", b"5"):
            what = _KINDS.get(kind, "an entry that is neither file nor folder")
            raise Corrupt(f"{self._what}: {_shown(name)} is {what}")
        size = _number(header[124:136], self._what) if size is None else size
        if size < 0:
            raise Corrupt(f"{self._what}: {_shown(name)}: a negative size")
        return Entry(name, size, kind == b"5" or name.endswith("/"), self._position)

    def _extended(self, size: int) -> bytes:
        if not 0 <= size <= MAX_EXTENDED:
            raise Corrupt(f"{self._what}: an extended header of {size} bytes")
        data = b""
        while len(data) < size + -size % BLOCK:
            data += self._take(size + -size % BLOCK - len(data))
        return data[:size]

    def _skip(self) -> None:
        """Goes to the next header."""
        seek = getattr(self._source, "seek", None)
        if seek is not None and self._left > _CHUNK:
            seek(self._left - 1, 1)  # the last byte is read, so that a file that ends early is found
            self._position, self._left = self._position + self._left - 1, 1
        while self._left:
            self._left -= len(self._take(min(_CHUNK, self._left)))

    def _take(self, size: int) -> bytes:
        chunk = self._source.read(size)
        if not chunk:
            raise Corrupt(f"{self._what}: ends within an entry")
        self._position += len(chunk)
        return chunk


def header_of(name: str, size: int, mode: int = 0o644) -> bytes:
    """Returns the header of a regular file: without owner, and with the time 0."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, mode, 0
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def filling(size: int) -> bytes:
    """Returns what stands after content of ``size`` bytes."""
    return bytes(-size % BLOCK)


def _number(field: bytes, what: str) -> int:
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    text = field.strip(b"\0 ")
    if text.strip(b"01234567"):
        raise Corrupt(f"{what}: a header with a number that is none")
    return int(text or b"0", 8)


def _text(data: bytes, what: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Corrupt(f"{what}: a name that is not UTF-8") from None
    if len(text) > MAX_NAME:
        raise Corrupt(f"{what}: a name of {len(text)} characters")
    return text


def _pax(data: bytes, what: str) -> dict[str, str]:
    """Returns the fields of an extended header."""
    fields: dict[str, str] = {}
    while data:
        length, space, _ = data.partition(b" ")
        if not space or not length.isdigit() or not len(length) + 1 < int(length) <= len(data):
            raise Corrupt(f"{what}: an extended header that is not one")
        record, data = data[len(length) + 1 : int(length)], data[int(length) :]
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if not equals or key.startswith(b"GNU.sparse"):
            raise Corrupt(f"{what}: an extended header with {_shown(key.decode('ascii', 'replace'))}")
        if key in (b"path", b"size"):
            fields[key.decode()] = _text(value, what)
    if not fields.get("size", "0").isascii() or not fields.get("size", "0").isdigit():
        raise Corrupt(f"{what}: an extended header with a size that is no number")
    return fields


def _shown(name: str) -> str:
    return ascii(name[:120])
