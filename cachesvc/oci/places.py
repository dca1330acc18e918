"""Defines what a place of images is: a repository of a registry, or an image layout on disk.

`push` and `export` are one flow over two places, and so are `pull` and `import`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cachesvc_client.wire.errors import Corrupt, TooLarge

from .descriptors import Descriptor, Document

CHUNK = 1 << 20
"""Largest number of bytes that are read at once."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Describes content to be stored. ``chunks``: makes its pieces, anew for each try."""

    descriptor: Descriptor
    chunks: Callable[[], Iterable[bytes]]

    @classmethod
    def of(cls, descriptor: Descriptor, data: bytes) -> Blob:
        """Returns a blob of bytes in memory."""
        return cls(descriptor, lambda: [data])


class ImageSource(Protocol):
    """Reads images. Every method raises the errors of ``wire.errors``, with the place's name."""

    def document(self, name: str) -> Document:
        """Returns the manifest or index of a tag, or of a digest, which it then has. Raises ``NotFound``."""
        ...

    def chunks(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yields the pieces of a blob. Raises ``Corrupt`` at the end unless size and digest are the described
        ones: nothing of it counts before the end."""
        ...

    def referrers(self, subject: Descriptor) -> list[Descriptor]:
        """Returns the manifests that claim to refer to a manifest."""
        ...


class ImageTarget(Protocol):
    """Writes images. A blob that is there already is not written again."""

    def put_blob(self, blob: Blob) -> bool:
        """Stores a blob; returns whether it had to be written."""
        ...

    def put_document(self, document: Document, tag: str = "") -> None:
        """Stores a manifest or index under its digest, and under a tag if one is named. Everything that it
        names is there already."""
        ...


def read_small(source: ImageSource, descriptor: Descriptor, limit: int, what: str) -> bytes:
    """Returns a whole blob of at most ``limit`` bytes. Raises ``TooLarge`` before anything is read."""
    if descriptor.size > limit:
        raise TooLarge(f"{what}: {descriptor.size} bytes, more than the {limit} allowed")
    return b"".join(source.chunks(descriptor))


def checked(chunks: Iterable[bytes], descriptor: Descriptor, where: str) -> Iterator[bytes]:
    """Yields the pieces, and raises ``Corrupt`` at the end unless they have the described size and digest."""
    hasher, size = hashlib.sha256(), 0
    for chunk in chunks:
        size += len(chunk)
        if size > descriptor.size:
            break
        hasher.update(chunk)
        yield chunk
    if size != descriptor.size:
        more = "more than " if size > descriptor.size else ""
        raise Corrupt(
            f"{where}: blob {descriptor.digest}: {more}{min(size, descriptor.size)} bytes, "
            f"its descriptor says {descriptor.size}"
        )
    if hasher.hexdigest() != descriptor.digest.hex:
        raise Corrupt(f"{where}: blob {descriptor.digest}: the bytes have another digest")
