"""Keep hints in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from .store import MAX_SECONDS, OnWake


class MemoryHot:
    """A :class:`~cachesvc.hot.store.Hot` of bounded size: the oldest hints go first.

    ``clock``: seconds, monotonic.
    """

    def __init__(self, max_bytes: int = 64 << 20, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._hints: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0
        self._listeners: list[OnWake] = []
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            hint = self._hints.get(key)
            if hint is None:
                return None
            until, value = hint
            if until <= self._clock():
                self._forget(key)
                return None
            return value

    def peek(self, key: str) -> bytes | None:
        return self.get(key) or b""

    def put(self, key: str, value: bytes, seconds: float = MAX_SECONDS) -> None:
        with self._lock:
            self._keep(key, self._clock() + min(seconds, MAX_SECONDS), value)

    def drop(self, key: str) -> None:
        with self._lock:
            self._forget(key)

    def count(self, key: str, seconds: float = MAX_SECONDS) -> int:
        with self._lock:
            until, value = self._hints.get(key, (0.0, b"0"))
            if until <= self._clock():
                until, value = self._clock() + min(seconds, MAX_SECONDS), b"0"
            number = int(value) + 1
            self._keep(key, until, b"%d" % number)
            return number

    def wake(self, key: str) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for on_wake in listeners:
            on_wake(key)

    def listen(self, on_wake: OnWake) -> Callable[[], None]:
        with self._lock:
            self._listeners.append(on_wake)

        def stop() -> None:
            with self._lock, suppress(ValueError):
                self._listeners.remove(on_wake)

        return stop

    def check(self) -> None:
        return

    def close(self) -> None:
        with self._lock:
            self._listeners.clear()

    def _keep(self, key: str, until: float, value: bytes) -> None:
        self._forget(key)
        if len(value) + len(key) > self._max_bytes:
            return
        self._hints[key] = (until, value)
        self._bytes += len(value) + len(key)
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._hints)))

    def _forget(self, key: str) -> None:
        hint = self._hints.pop(key, None)
        if hint is not None:
            self._bytes -= len(hint[1]) + len(key)
