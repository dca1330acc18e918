"""Receive the bytes of a pack under a lease, which protects them from GC until a revision names them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from cachesvc.index.packs.uploads import Upload
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, LeaseLost, TooLarge

from .context import Registry

EXTEND_SECONDS = 20
"""Seconds between two extensions of a lease while bytes arrive; a lease is at least a minute."""

BEGIN_AGAIN = "begin the upload again"
"""Hint of errors that end an upload."""


def demand_lease(registry: Registry, upload: Upload) -> None:
    """Raises ``LeaseLost`` if the upload's lease is over."""
    if upload.leased_until <= registry.clock():
        raise LeaseLost(f"the lease of upload {upload.upload} is over", BEGIN_AGAIN)


def new_key(upload: Upload) -> str:
    """Returns a key of the blob store that no one used before."""
    return f"packs/{upload.upload}-{secrets.token_hex(4)}"


def end_lease(registry: Registry, key: str) -> None:
    """Ends the lease of an object, so that GC may collect it at once unless a revision names it.

    If this fails, the lease runs out by itself.
    """
    with suppress(CacheSvcError), registry.index.write_once() as unit:
        unit.objects.lease(key, 0)


def extend_upload(registry: Registry, upload: Upload, key: str) -> None:
    """Extends the leases of an upload and of its object. Raises ``LeaseLost``."""
    until = registry.now + registry.limits.lease_seconds
    with registry.index.write() as unit:
        if not (unit.uploads.lease(upload.upload, until) and unit.objects.lease(key, until)):
            raise LeaseLost(f"upload {upload.upload} was ended while it was received", BEGIN_AGAIN)


def extend_object(registry: Registry, key: str) -> None:
    """Extends the lease of an object that belongs to no upload. Raises ``LeaseLost``."""
    with registry.index.write_once() as unit:
        if not unit.objects.lease(key, registry.now + registry.limits.lease_seconds):
            raise LeaseLost("the bundle was collected while it was received", BEGIN_AGAIN)


def record_received(registry: Registry, upload: Upload, key: str, digest: Digest, size: int) -> None:
    """Records that all bytes of an upload are stored under ``key``.

    Raises ``LeaseLost``, and ``InvalidRequest`` if the upload has other bytes already.
    """
    until = registry.now + registry.limits.lease_seconds
    with registry.index.write() as unit:
        current = unit.uploads.get(upload.upload)
        if current is None or not unit.objects.received(key, digest, size, until):
            raise LeaseLost(f"upload {upload.upload} was ended while it was received", BEGIN_AGAIN)
        unit.uploads.lease(upload.upload, until)
        if unit.uploads.hold(upload.upload, key) or current.key is None:
            return
        if unit.objects.content(current.key) != (digest, size):
            raise InvalidRequest(f"upload {upload.upload} holds other bytes already", BEGIN_AGAIN)
        # A repeated transfer: the first copy stays, and lives as long as this one would have.
        unit.objects.lease(current.key, until)
        unit.objects.lease(key, 0)


class Intake(Iterable[bytes]):
    """Passes the chunks of a pack on, hashes and counts them, and extends the lease every ``EXTEND_SECONDS``.

    Raises ``TooLarge`` past the declared size, ``InvalidRequest`` short of it.
    """

    def __init__(
        self, chunks: Iterable[bytes], size: int, *, extend: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._chunks, self._declared, self._extend, self._clock = chunks, size, extend, clock
        self._hash = hashlib.sha256()
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        extended = self._clock()
        for chunk in self._chunks:
            self.size += len(chunk)
            if self.size > self._declared:
                raise TooLarge(f"more than the {self._declared} bytes that the upload declared", BEGIN_AGAIN)
            self._hash.update(chunk)
            if self._clock() - extended > EXTEND_SECONDS:
                self._extend()
                extended = self._clock()
            yield chunk
        if self.size != self._declared:
            raise InvalidRequest(f"{self.size} bytes came; the upload declared {self._declared}")

    @property
    def digest(self) -> Digest:
        """The digest of the bytes that have passed."""
        return Digest("sha256:" + self._hash.hexdigest())
