"""Owns what an agent gives to others: packs of its store that this process has verified, by capability."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc_client.node.store_files import open_plain_file
from cachesvc_client.wire.digest import Digest

ROTATION_SECONDS = 600.0
"""Seconds after which a capability is replaced. The one before it counts for as long again: offers are passed
on for less (`registry.peers.OFFER_SECONDS`)."""


class Shelf:
    """Opens packs for those who show their capability. Thread-safe.

    A capability is made from the pack's digest, the time, and a secret of this process: it opens one pack,
    at this agent, for 20 minutes at most. ``clock``: seconds, monotonic.
    """

    def __init__(self, store: SharedStoreWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._verified: dict[str, int] = {}

    def put(self, pack: Digest, size: int) -> None:
        """Adds a pack whose bytes this process has verified in the store."""
        with self._lock:
            self._verified[pack.hex] = size

    def remove(self, name: str) -> None:
        """Removes a pack by the digits of its digest, if it is here."""
        with self._lock:
            self._verified.pop(name, None)

    def has(self, pack: Digest) -> bool:
        """Returns whether a pack is given to others."""
        with self._lock:
            return pack.hex in self._verified

    def has_whole(self, pack: Digest) -> bool:
        """Reads a pack that an earlier run left in the store; returns whether it has its digest."""
        try:
            with self._open(pack.hex) as file:
                return Digest.of_chunks(iter(lambda: file.read(1 << 20), b"")) == pack
        except OSError:
            return False

    def capability(self, pack: Digest) -> str:
        """Returns the present capability of a pack."""
        return self._made(pack.hex, self._period())

    def open(self, name: str, capability: str) -> BinaryIO | None:
        """Opens a pack, named by the digits of its digest; ``None`` without its capability, and equally if
        it is not given to others."""
        period = self._period()
        known = [self._made(name, each) for each in (period, period - 1)]
        matches = [hmac.compare_digest(each.encode(), capability.encode()) for each in known]
        with self._lock:
            size = self._verified.get(name)
        if size is None or not any(matches):
            return None
        try:
            file = self._open(name)
        except OSError:
            return None
        if os.fstat(file.fileno()).st_size != size:
            file.close()
            return None
        return file

    def _open(self, name: str) -> BinaryIO:
        return os.fdopen(open_plain_file(self._store.pack_path(name), os.O_RDONLY), "rb")

    def _period(self) -> int:
        return int(self._clock() // ROTATION_SECONDS)

    def _made(self, name: str, period: int) -> str:
        return hmac.new(self._secret, f"{period}/{name}".encode(), hashlib.sha256).hexdigest()
