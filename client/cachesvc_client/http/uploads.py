"""Reads the bodies of uploads from files while they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..wire.errors import Corrupt, StorageFull
from .timed import CHUNK


def file_chunks(pack: Path | BinaryIO, start: int, size: int) -> Iterator[bytes]:
    """Yields ``size`` bytes of a file, or of an open file from ``start``. Raises ``Corrupt`` if the file ends
    early and ``StorageFull`` if it cannot be read."""
    try:
        if isinstance(pack, Path):
            with open(pack, "rb") as file:
                yield from _exactly(file, size)
        else:
            pack.seek(start)
            yield from _exactly(pack, size)
    except OSError as error:
        raise StorageFull(f"{pack if isinstance(pack, Path) else 'the pack'}: {error.strerror}") from None


def _exactly(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        chunk = file.read(min(size, CHUNK))
        if not chunk:
            raise Corrupt(f"the pack ends {size} bytes early")
        size -= len(chunk)
        yield chunk
