"""Reads and writes bundles: a bundle is one revision in one file, for use without a registry.

Format: the magic line, the envelope's length (8 bytes, big-endian), the envelope, the pack. Trust comes from
the envelope inside; the file itself is not trusted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from ..atomic import replacing
from ..wire.errors import Corrupt, InvalidRequest, NotFound, StorageFull
from ..wire.manifest.records import MAX_ENVELOPE_BYTES

BUNDLE_MAGIC = b"cachesvc-bundle-1\n"
"""First bytes of every bundle."""
SUFFIX = ".cachesvc"
"""Suffix of the names of bundle files."""
_HEADER_BYTES = len(BUNDLE_MAGIC) + 8
"""Number of bytes before the envelope."""

_CUT_OFF = "the file was cut off: pull or copy it again"
_OTHER_FILE = "bundles are what cachesvc pull and cachesvc warm --out write"


def bundle_files(path: Path) -> list[Path]:
    """List a bundle file, or those of a folder by their names. Raise ``InvalidRequest`` if the path is absent
    or may not be read, ``NotFound`` for a folder without one."""
    try:
        names = os.listdir(path) if path.is_dir() else None
        if names is None and not path.exists():
            raise InvalidRequest(f"{path}: no such bundle file or folder")
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror or error}") from None
    if names is None:
        return [path]
    files = sorted(path / name for name in names if name.endswith(SUFFIX))
    if not files:
        raise NotFound(f"{path}: no bundle file (*{SUFFIX}) there", "cachesvc-client pull NAME --into DIR")
    return files


def write_bundle(path: Path, envelope: bytes, pack: Path) -> None:
    """Writes the bundle ``path``, readable by all, whole or not at all. Replaces an older bundle.

    Raises ``StorageFull`` if it cannot be written and ``NotFound`` without the pack.
    """
    try:
        source = open(pack, "rb")  # noqa: SIM115
    except OSError as error:
        raise NotFound(f"pack {pack}: {error.strerror or error}") from None
    with source, _replacing(path) as out:
        out.write(bundle_head(envelope))
        shutil.copyfileobj(source, out, 1 << 20)


def replace_envelope(path: Path, out: Path, envelope: bytes) -> None:
    """Writes the bundle ``path`` to ``out`` under another envelope, whole or not at all; both may be one
    file.

    Raises ``StorageFull`` if it cannot be written, ``NotFound`` and ``Corrupt`` as ``open_bundle`` does.
    """
    _, offset = open_bundle(path)
    with open(path, "rb") as source, _replacing(out) as target:
        source.seek(offset)
        target.write(bundle_head(envelope))
        shutil.copyfileobj(source, target, 1 << 20)


def bundle_head(envelope: bytes) -> bytes:
    """Returns the bytes of a bundle that stand before the pack."""
    return BUNDLE_MAGIC + len(envelope).to_bytes(8, "big") + envelope


def open_bundle(path: Path) -> tuple[bytes, int]:
    """Returns the envelope, and the position at which the pack begins. The envelope is unchecked: the caller
    passes it to ``trust.accept``.

    Reads no more than an envelope's bound. Raises ``NotFound`` or ``Corrupt``.
    """
    try:
        # A named pipe in its place has no bytes yet: nobody waits for its writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return read_head(file, f"bundle {path}")
    except OSError as error:
        raise NotFound(f"bundle {path}: {error.strerror or error}") from None


def read_head(file: IO[bytes], what: str) -> tuple[bytes, int]:
    """Returns the unchecked envelope at the beginning of a bundle's bytes, and the position at which the pack
    begins. Raises ``Corrupt``, which begins with ``what``, and ``OSError``."""
    size = _envelope_size(file.read(_HEADER_BYTES), what)
    envelope = file.read(size)
    if len(envelope) < size:
        raise Corrupt(f"{what}: ends within its envelope", _CUT_OFF)
    return envelope, _HEADER_BYTES + size


def split_bundle(chunks: Iterable[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Splits a bundle that arrives in pieces: returns its envelope, and the pieces of its pack as they come.

    Keeps the envelope and one piece in memory. Raises ``Corrupt``, and what ``chunks`` raises.
    """
    source, buffer = iter(chunks), bytearray()

    def gather(size: int) -> None:
        while len(buffer) < size and (chunk := next(source, None)) is not None:
            buffer.extend(chunk)

    def pack() -> Iterator[bytes]:
        if len(buffer) > end:
            yield bytes(memoryview(buffer)[end:])
        yield from source

    gather(_HEADER_BYTES)
    end = _HEADER_BYTES + _envelope_size(bytes(buffer[:_HEADER_BYTES]), "bundle")
    gather(end)
    if len(buffer) < end:
        raise Corrupt("bundle: ends within its envelope", _CUT_OFF)
    return bytes(memoryview(buffer)[_HEADER_BYTES:end]), pack()


def _envelope_size(header: bytes, what: str) -> int:
    size = int.from_bytes(header[len(BUNDLE_MAGIC) :], "big")
    if not header.startswith(BUNDLE_MAGIC) or len(header) < _HEADER_BYTES:
        raise Corrupt(f"{what}: it does not begin as a bundle of this version does", _OTHER_FILE)
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
