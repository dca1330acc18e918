"""A bundle: one revision in one file, for use without a registry.

Format: the magic line, the envelope's length (8 bytes, big-endian), the envelope, the pack. The envelope
inside is what makes it trusted; the file itself is not.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..atomic import replacing
from ..wire.errors import Corrupt, NotFound, StorageFull
from ..wire.records import MAX_ENVELOPE_BYTES

BUNDLE_MAGIC = b"cachesvc-bundle-1\n"
SUFFIX = ".cachesvc"
_HEADER = len(BUNDLE_MAGIC) + 8


def write_bundle(path: Path, envelope: bytes, pack: Path) -> None:
    """Makes ``path`` at once or not at all, readable by all. Replaces an older bundle.

    Raises ``StorageFull`` if it cannot be written and ``NotFound`` without the pack.
    """
    try:
        source = open(pack, "rb")  # noqa: SIM115
    except OSError as error:
        raise NotFound(f"pack {pack}: {error.strerror or error}") from None
    with source, _replacing(path) as out:
        out.write(bundle_head(envelope))
        shutil.copyfileobj(source, out, 1 << 20)


def bundle_head(envelope: bytes) -> bytes:
    """What stands before the pack."""
    return BUNDLE_MAGIC + len(envelope).to_bytes(8, "big") + envelope


def open_bundle(path: Path) -> tuple[bytes, int]:
    """(envelope, where the pack begins). The envelope is unchecked: it goes to ``check_envelope``.

    Reads no more than an envelope's bound. Raises ``NotFound`` or ``Corrupt``.
    """
    try:
        with open(path, "rb") as file:
            size = _envelope_size(file.read(_HEADER), f"bundle {path}")
            envelope = file.read(size)
    except OSError as error:
        raise NotFound(f"bundle {path}: {error.strerror or error}") from None
    if len(envelope) < size:
        raise Corrupt(f"bundle {path}: ends within its envelope")
    return envelope, _HEADER + size


def split_bundle(chunks: Iterable[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """:func:`open_bundle` for one that arrives in pieces: (envelope, the pack's pieces as they come).

    Holds the envelope and a piece. Raises ``Corrupt``, and what ``chunks`` raises.
    """
    source, held = iter(chunks), bytearray()

    def gather(size: int) -> None:
        while len(held) < size and (chunk := next(source, None)) is not None:
            held.extend(chunk)

    def pack() -> Iterator[bytes]:
        if len(held) > end:
            yield bytes(memoryview(held)[end:])
        yield from source

    gather(_HEADER)
    end = _HEADER + _envelope_size(bytes(held[:_HEADER]), "bundle")
    gather(end)
    if len(held) < end:
        raise Corrupt("bundle: ends within its envelope")
    return bytes(memoryview(held)[_HEADER:end]), pack()


def _envelope_size(header: bytes, what: str) -> int:
    size = int.from_bytes(header[len(BUNDLE_MAGIC) :], "big")
    if not header.startswith(BUNDLE_MAGIC) or len(header) < _HEADER:
        raise Corrupt(f"{what}: it does not begin as a bundle of this version does")
    if not 0 < size <= MAX_ENVELOPE_BYTES:
        raise Corrupt(f"{what}: an envelope of {size} bytes")
    return size


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Replaces ``path`` when the block ends well. Raises ``StorageFull``."""
    try:
        with replacing(path) as out:
            yield out
    except OSError as error:
        raise StorageFull(f"{path}: cannot be written: {error.strerror or error}") from None
