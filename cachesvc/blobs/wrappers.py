"""Stores around stores: each adds one property and keeps the contract."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from cachesvc_client.wire.errors import Unavailable

from .store import BlobFacts, BlobStore, Unusable, clipped

T = TypeVar("T")


class Verifying:
    """Believes nothing about sizes: what was put is there in full, and a read gives every byte it promised
    or raises ``Unavailable`` (a download is then cut, and never silently short)."""

    def __init__(self, inner: BlobStore) -> None:
        self._inner = inner

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        passed = 0

        def counted() -> Iterator[bytes]:
            nonlocal passed
            for chunk in chunks:
                passed += len(chunk)
                yield chunk

        stored = self._inner.put(key, counted())
        if stored != passed:
            self._inner.delete(key)
            raise Unavailable(f"object {key}: {passed} bytes were put, the store holds {stored}")
        return passed

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        promised = clipped(key, self._inner.size(key), start, length)
        return _exactly(self._inner.open(key, start, length), promised, key)

    def size(self, key: str) -> int:
        return self._inner.size(key)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        return self._inner.list(prefix)

    def check(self) -> None:
        self._inner.check()


class Retrying:
    """Tries again what failed with ``Unavailable``, where waiting may fix it: reads go on where they broke
    off. A put is not tried again: its chunks are gone.

    ``attempts`` in all; between them ``sleep`` with a doubling, jittered pause.
    """

    def __init__(
        self, inner: BlobStore, attempts: int = 4, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._inner, self._attempts, self._sleep = inner, attempts, sleep

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        return self._inner.put(key, chunks)

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        first = self._again(lambda: self._inner.open(key, start, length))
        return self._resumed(first, key, start, length)

    def size(self, key: str) -> int:
        return self._again(lambda: self._inner.size(key))

    def delete(self, key: str) -> None:
        self._again(lambda: self._inner.delete(key))

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        return iter(self._again(lambda: list(self._inner.list(prefix))))

    def check(self) -> None:
        self._inner.check()

    def _again(self, act: Callable[[], T]) -> T:
        for attempt in range(1, self._attempts):
            try:
                return act()
            except Unusable:
                raise
            except Unavailable:
                self._sleep(_pause(attempt))
        return act()

    def _resumed(self, chunks: Iterator[bytes], key: str, start: int, length: int | None) -> Iterator[bytes]:
        given, broken = 0, 0
        while True:
            try:
                for chunk in chunks:
                    given += len(chunk)
                    broken = 0 if chunk else broken
                    yield chunk
                return
            except Unavailable:
                broken += 1
                if broken >= self._attempts:
                    raise
                self._sleep(_pause(broken))
            finally:
                _close(chunks)
            left = None if length is None else length - given
            chunks = self._again(lambda left=left, begin=start + given: self._inner.open(key, begin, left))  # type: ignore[misc]


@dataclass
class Meter:
    """What passed: calls and errors by operation, bytes in and out, seconds spent."""

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0


class Metered:
    """Counts into ``meter``."""

    def __init__(self, inner: BlobStore, meter: Meter | None = None) -> None:
        self._inner, self.meter = inner, meter or Meter()
        self._lock = threading.Lock()

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        with self._timed("put"):
            size = self._inner.put(key, chunks)
        with self._lock:
            self.meter.bytes_in += size
        return size

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        with self._timed("open"):
            chunks = self._inner.open(key, start, length)
        return self._counted(chunks)

    def size(self, key: str) -> int:
        with self._timed("size"):
            return self._inner.size(key)

    def delete(self, key: str) -> None:
        with self._timed("delete"):
            self._inner.delete(key)

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        with self._timed("list"):
            return self._inner.list(prefix)

    def check(self) -> None:
        with self._timed("check"):
            self._inner.check()

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        try:
            for chunk in chunks:
                with self._lock:
                    self.meter.bytes_out += len(chunk)
                yield chunk
        except Exception:
            with self._lock:
                self.meter.errors["read"] += 1
            raise
        finally:
            _close(chunks)

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        began = time.monotonic()
        failed = True
        try:
            yield
            failed = False
        finally:
            with self._lock:
                self.meter.calls[operation] += 1
                self.meter.errors[operation] += failed
                self.meter.seconds[operation] += time.monotonic() - began  # type: ignore[assignment]


def _exactly(chunks: Iterator[bytes], promised: int, key: str) -> Iterator[bytes]:
    given = 0
    try:
        for chunk in chunks:
            given += len(chunk)
            if given > promised:
                raise Unavailable(f"object {key}: more bytes than it has")
            yield chunk
    finally:
        _close(chunks)
    if given < promised:
        raise Unavailable(f"object {key}: the store sent {given} of {promised} bytes")


def _pause(attempt: int) -> float:
    return float(0.1 * 2**attempt * (0.5 + random.random() / 2))


def _close(chunks: Iterator[bytes]) -> None:
    close = getattr(chunks, "close", None)
    if close is not None:
        close()
