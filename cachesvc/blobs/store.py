"""Define what a blob store guarantees.

- **Written once.** A key is never put twice: callers choose a new random key for each attempt. The outcome
  of a second put is not defined.
- **Whole or absent.** An object is visible only when all of its bytes are durable. A put that fails, or
  whose chunks raise, leaves nothing that can be read.
- **Read after write.** After ``put`` returned, every reader sees the object; after ``delete`` returned,
  no reader can open it. A reader that opened it before may go on or fail, but never gets other bytes.
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

CHUNK_BYTES = 64 << 10
"""Bytes of a chunk that a reader gets, at most."""

_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}(?:/[a-z0-9][a-z0-9._-]{0,199}){0,7}")


@dataclass(frozen=True, slots=True)
class BlobFacts:
    """One object of a listing. ``size`` in bytes."""

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that holds a store, in bytes. ``free``: what the registry's user may still write."""

    free: int
    size: int


class Unusable(Unavailable):
    """The store answers, and refuses until somebody fixes what the hint names."""


class BlobStore(Protocol):
    """A store of immutable objects, as the module defines it. Safe for use from several threads."""

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        """Stores the concatenation of ``chunks`` and returns its size, in bytes, as the store reports it.

        The memory that this needs does not grow with the size. An error of ``chunks`` is raised unchanged,
        and nothing is stored.
        """
        ...

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yields ``length`` bytes from ``start`` (``None``: to the end), in chunks of at most
        ``CHUNK_BYTES``.

        ``NotFound`` and ``RangeInvalid`` (``start`` behind the last byte; never for an empty object from 0)
        are raised here, not by the iterator. ``length`` may reach beyond the end.
        """
        ...

    def size(self, key: str) -> int:
        """Returns the size of an object in bytes. Raises ``NotFound``."""
        ...

    def delete(self, key: str) -> None:
        """Removes the object; an absent object is a success."""
        ...

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        """Yields every visible object whose key begins with ``prefix``, in any order."""
        ...

    def check(self) -> None:
        """Raises ``Unavailable`` with the cause if the store cannot be used now."""
        ...


class OnDisk(Protocol):
    """Says how much room a store has. Not every store can."""

    def disk(self) -> Disk:
        """Returns the space of the store's file system now. Raises ``Unavailable``."""
        ...


class Links(Protocol):
    """Makes links by which readers get an object from the store itself. Not every store can."""

    def link(self, key: str, seconds: int) -> str:
        """Returns a URL that serves the object to any GET, whole or one range of it, for ``seconds``.

        Does not ask the store: the object need not exist. The URL serves nothing but that GET.
        """
        ...


def prove(store: BlobStore) -> None:
    """Writes an object, reads it back and deletes it, to find out whether a registry can use this store.

    Raises what the store raises; ``Unusable`` for what waiting does not fix.
    """
    store.check()
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
    """Returns ``key``; raises ``ValueError`` unless it has up to 8 parts of lower-case letters, digits, ``. _
    -``."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"not a blob key: {key[:120]!r}")
    return key


def missing(key: str) -> NotFound:
    """Returns the error for an absent object."""
    return NotFound(f"object {key} does not exist")


def clipped(key: str, size: int, start: int, length: int | None) -> int:
    """Returns how many bytes a reader gets. Raises ``RangeInvalid``."""
    if start < 0 or (length is not None and length < 0) or start > size or (start == size and size):
        raise RangeInvalid(f"object {key} has {size} bytes: none begins at {start}")
    return size - start if length is None else min(length, size - start)
