"""Keep hints in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from .store import MAX_HOLD_SECONDS, MAX_HOLDERS, MAX_SECONDS, OnWake

_ENTRY_BYTES = 512
"""Bytes that a hint needs beside its key and its value [measured]: of short ones a stranger makes many."""
_MAX_HELD_BYTES = 16 << 20
"""Bytes of what is held, at most. They are counted apart: who says that they hold much forgets no hint."""


class MemoryHot:
    """A :class:`~cachesvc.hot.store.Hot` of bounded size: the oldest hints go first.

    ``clock``: seconds, monotonic.
    """

    def __init__(self, max_bytes: int = 64 << 20, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._hints: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0
        self._held: OrderedDict[str, OrderedDict[str, tuple[float, bytes]]] = OrderedDict()
        self._held_bytes = 0
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

    def hold(self, key: str, holder: str, value: bytes, seconds: float) -> None:
        with self._lock:
            self._let_go(key, holder)
            rows = self._held.setdefault(key, OrderedDict())
            rows[holder] = (self._clock() + min(seconds, MAX_HOLD_SECONDS), value)
            self._held.move_to_end(key)
            self._held_bytes += _ENTRY_BYTES + len(key) + len(holder) + len(value)
            while len(rows) > MAX_HOLDERS:
                self._let_go(key, next(iter(rows)))
            while self._held_bytes > _MAX_HELD_BYTES:
                oldest = next(iter(self._held))
                self._let_go(oldest, next(iter(self._held[oldest])))

    def holders(self, key: str) -> dict[str, bytes]:
        with self._lock:
            now, rows = self._clock(), self._held.get(key, OrderedDict())
            for holder in [holder for holder, (until, _) in rows.items() if until <= now]:
                self._let_go(key, holder)
            return {holder: value for holder, (_, value) in rows.items()}

    def release(self, key: str, holder: str) -> None:
        with self._lock:
            self._let_go(key, holder)

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
        size = _ENTRY_BYTES + len(key) + len(value)
        if size > self._max_bytes:
            return
        self._hints[key] = (until, value)
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._hints)))

    def _forget(self, key: str) -> None:
        hint = self._hints.pop(key, None)
        if hint is not None:
            self._bytes -= _ENTRY_BYTES + len(hint[1]) + len(key)

    def _let_go(self, key: str, holder: str) -> None:
        rows = self._held.get(key, OrderedDict())
        row = rows.pop(holder, None)
        if row is not None:
            self._held_bytes -= _ENTRY_BYTES + len(key) + len(holder) + len(row[1])
            if not rows:
                del self._held[key]
