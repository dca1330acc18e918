"""Cache the shared hints in this process for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .store import MAX_SECONDS, Hot, OnWake

FRESH_SECONDS = 0.1
"""Seconds after which one caller asks for a hint again, while others use the old one for as long again.
Hundreds of requests for one hint, as when a fleet starts, become ten look-ups a second."""
_MAX_BYTES = 16 << 20
"""Bytes of the keys and values that the cache has, at most."""


@dataclass(slots=True)
class _Entry:
    value: bytes | None
    fresh_until: float
    asked_until: float = 0.0


class ShortCache:
    """A :class:`~cachesvc.hot.store.Hot` in front of one that is reached over a network.

    A change by this process counts at once, and a change by another within twice ``FRESH_SECONDS``. No hint
    lives longer than in the shared store alone. A full cache is emptied, and fills again in moments.
    ``clock``: seconds, monotonic.
    """

    def __init__(self, shared: Hot, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared, self._clock = shared, clock
        self._entries: dict[str, _Entry] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._changes = 0

    def get(self, key: str) -> bytes | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and self._clock() < entry.fresh_until:
                return entry.value
            changes = self._changes
        value = self._shared.get(key)
        with self._lock:
            if changes == self._changes:  # else it may be older than what was put meanwhile
                self._keep(key, value, FRESH_SECONDS)
        return value

    def peek(self, key: str) -> bytes | None:
        with self._lock:
            entry, now = self._entries.get(key), self._clock()
            if entry is None or entry.fresh_until + FRESH_SECONDS <= now:
                return None
            if entry.fresh_until <= now and entry.asked_until <= now:
                entry.asked_until = now + FRESH_SECONDS  # this caller asks for all of them
                return None
            return entry.value or b""

    def put(self, key: str, value: bytes, seconds: float = MAX_SECONDS) -> None:
        seconds = min(seconds, MAX_SECONDS)
        # Other processes keep it for twice FRESH_SECONDS after the store has forgotten it.
        self._shared.put(key, value, max(seconds - 2 * FRESH_SECONDS, 0.0))
        with self._lock:
            self._changes += 1
            self._keep(key, value, min(seconds / 2, FRESH_SECONDS))

    def drop(self, key: str) -> None:
        self._shared.drop(key)
        with self._lock:
            self._changes += 1
            self._forget(key)

    def count(self, key: str, seconds: float = MAX_SECONDS) -> int:
        return self._shared.count(key, seconds)

    def hold(self, key: str, holder: str, value: bytes, seconds: float) -> None:
        self._shared.hold(key, holder, value, seconds)

    def holders(self, key: str) -> dict[str, bytes]:
        return self._shared.holders(key)

    def release(self, key: str, holder: str) -> None:
        self._shared.release(key, holder)

    def wake(self, key: str) -> None:
        self._shared.wake(key)

    def listen(self, on_wake: OnWake) -> Callable[[], None]:
        def forget_and_wake(key: str | None) -> None:
            # A woken listener looks at what has changed, and must not see an older hint.
            with self._lock:
                self._changes += 1
                self._entries.clear()
                self._bytes = 0
            on_wake(key)

        return self._shared.listen(forget_and_wake)

    def check(self) -> None:
        self._shared.check()

    def close(self) -> None:
        self._shared.close()

    def _keep(self, key: str, value: bytes | None, seconds: float) -> None:
        self._forget(key)
        size = len(key) + len(value or b"")
        if self._bytes + size > _MAX_BYTES:
            self._entries.clear()
            self._bytes = 0
        self._bytes += size
        self._entries[key] = _Entry(value, self._clock() + seconds)

    def _forget(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(key) + len(entry.value or b"")
