"""What a blob store guarantees.

- **Written once.** A key is never put twice: the callers draw a new one for each attempt. What a second
  put would do is not defined.
- **Whole or absent.** An object is visible only when all of its bytes are durable. A put that fails, or
  whose chunks raise, leaves nothing that can be read.
- **Read after write.** After ``put`` returned, every reader sees the object; after ``delete`` returned,
  none that opens it anew does. A reader that opened it before may go on or fail, but never gets other bytes.
- There is no rename, no append and no modification time: S3 has none that could be relied on.

Errors are those of ``cachesvc_client.wire.errors``: ``NotFound``, ``RangeInvalid``, ``StorageFull``,
``Unavailable`` (of which ``Unusable`` is a kind). A backend's own error types do not leave this package.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cachesvc_client.wire.errors import NotFound, RangeInvalid, Unavailable

CHUNK_BYTES = 1 << 20
"""The size of the chunks that readers get, at most."""

_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}(?:/[a-z0-9][a-z0-9._-]{0,199}){0,7}")


@dataclass(frozen=True, slots=True)
class BlobFacts:
    """One object of a listing. ``size`` in bytes."""

    key: str
    size: int


class Unusable(Unavailable):
    """The store answers, and will refuse until somebody fixes what the hint names."""


class BlobStore(Protocol):
    """See the module. Safe for use from several threads."""

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        """Stores the concatenation of ``chunks``, in memory independent of its size; returns the size that
        the store itself tells.

        What ``chunks`` raises is raised, and nothing is stored.
        """
        ...

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """``length`` bytes from ``start`` (``None``: to the end), in chunks of at most ``CHUNK_BYTES``.

        ``NotFound`` and ``RangeInvalid`` (``start`` behind the last byte; never for an empty object from 0)
        are raised here, not by the iterator. ``length`` may reach beyond the end.
        """
        ...

    def size(self, key: str) -> int:
        """Bytes. Raises ``NotFound``."""
        ...

    def delete(self, key: str) -> None:
        """Removes the object; that it is absent already is a success."""
        ...

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        """Every visible object whose key begins with ``prefix``, in any order."""
        ...

    def check(self) -> None:
        """Raises ``Unavailable`` with the cause if the store cannot be used now."""
        ...


class Links(Protocol):
    """A power that not every store has: readers get an object from the store itself, past this service."""

    def link(self, key: str, seconds: int) -> str:
        """A URL under which whoever has it gets the object by GET, whole or one range of it, for ``seconds``.

        Made without asking the store: the object need not exist. Anything else than that GET is refused.
        """
        ...


def prove(store: BlobStore) -> None:
    """Writes an object, reads it back and deletes it: whether a registry can live on this store. Raises what
    the store raises, ``Unusable`` for what waiting does not fix."""
    key = f"checks/{secrets.token_hex(16)}"
    store.put(key, [b"cachesvc"])
    try:
        if b"".join(store.open(key)) != b"cachesvc":
            raise Unusable(
                "the store gives back other bytes than it was given", "is it an S3? see bucket_endpoint"
            )
    finally:
        store.delete(key)
    for _ in store.list(key):
        break


def checked_key(key: str) -> str:
    """``key``, or ``ValueError``: lower-case letters, digits and ``. _ -``, in up to 8 parts."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"not a blob key: {key[:120]!r}")
    return key


def missing(key: str) -> NotFound:
    """The error for an absent object."""
    return NotFound(f"object {key} does not exist")


def clipped(key: str, size: int, start: int, length: int | None) -> int:
    """How many bytes a reader gets. Raises ``RangeInvalid``."""
    if start < 0 or (length is not None and length < 0) or start > size or (start == size and size):
        raise RangeInvalid(f"object {key}: from {start}, of {size} bytes")
    return size - start if length is None else min(length, size - start)
