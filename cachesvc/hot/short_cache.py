"""What replicas share, remembered in this process for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .store import MAX_SECONDS, Heard, Hot

FRESH_SECONDS = 0.1
"""What is held is asked for again after it, by one, while others go on with it for as long again. Hundreds of
requests for one thing, as when a fleet starts, are so ten questions a second."""
_MAX_BYTES = 16 << 20


@dataclass(slots=True)
class _Held:
    value: bytes | None
    fresh_until: float
    asked_until: float = 0.0


class ShortCache:
    """A :class:`~cachesvc.hot.store.Hot` in front of one that has to be asked over a network.

    What this process puts or drops it sees at once, what another does within twice ``FRESH_SECONDS``; no hint
    lives longer than in the store alone. Bounded: when it is full it is emptied, and fills again in moments.
    ``clock``: seconds, monotonic.
    """

    def __init__(self, shared: Hot, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared, self._clock = shared, clock
        self._held: dict[str, _Held] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._changes = 0

    def get(self, key: str) -> bytes | None:
        with self._lock:
            held = self._held.get(key)
            if held is not None and self._clock() < held.fresh_until:
                return held.value
            changes = self._changes
        found = self._shared.get(key)
        with self._lock:
            if changes == self._changes:  # else it may be older than what was put meanwhile
                self._hold(key, found, FRESH_SECONDS)
        return found

    def peek(self, key: str) -> bytes | None:
        with self._lock:
            held, now = self._held.get(key), self._clock()
            if held is None or held.fresh_until + FRESH_SECONDS <= now:
                return None
            if held.fresh_until <= now and held.asked_until <= now:
                held.asked_until = now + FRESH_SECONDS  # whoever is told so asks, for all
                return None
            return held.value or b""

    def put(self, key: str, value: bytes, seconds: float = MAX_SECONDS) -> None:
        seconds = min(seconds, MAX_SECONDS)
        # Others hold it for twice FRESH_SECONDS after the store has forgotten it.
        self._shared.put(key, value, max(seconds - 2 * FRESH_SECONDS, 0.0))
        with self._lock:
            self._changes += 1
            self._hold(key, value, min(seconds / 2, FRESH_SECONDS))

    def drop(self, key: str) -> None:
        self._shared.drop(key)
        with self._lock:
            self._changes += 1
            self._forget(key)

    def count(self, key: str, seconds: float = MAX_SECONDS) -> int:
        return self._shared.count(key, seconds)

    def wake(self, key: str) -> None:
        self._shared.wake(key)

    def listen(self, heard: Heard) -> Callable[[], None]:
        def told(key: str | None) -> None:
            # Who is woken looks at what has changed, and must not be shown what was held before.
            with self._lock:
                self._changes += 1
                self._held.clear()
                self._bytes = 0
            heard(key)

        return self._shared.listen(told)

    def check(self) -> None:
        self._shared.check()

    def close(self) -> None:
        self._shared.close()

    def _hold(self, key: str, value: bytes | None, seconds: float) -> None:
        self._forget(key)
        size = len(key) + len(value or b"")
        if self._bytes + size > _MAX_BYTES:
            self._held.clear()
            self._bytes = 0
        self._bytes += size
        self._held[key] = _Held(value, self._clock() + seconds)

    def _forget(self, key: str) -> None:
        gone = self._held.pop(key, None)
        if gone is not None:
            self._bytes -= len(key) + len(gone.value or b"")
