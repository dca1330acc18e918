"""Wrap a store: each wrapper adds one property and keeps the contract."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from cachesvc import spans
from cachesvc_client.wire.errors import Unavailable

from .store import BlobFacts, BlobStore, Unusable, clipped

T = TypeVar("T")


class Verifying:
    """Checks sizes: a put object is there in full, and a read yields every byte or raises ``Unavailable``, so
    that no download is short without an error."""

    def __init__(self, inner: BlobStore) -> None:
        self._inner = inner

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        size = 0

        def count() -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                size += len(chunk)
                yield chunk

        stored = self._inner.put(key, count())
        if stored != size:
            self._inner.delete(key)
            raise Unavailable(f"object {key}: {size} bytes were put, the store holds {stored}")
        return size

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        promised = clipped(key, self._inner.size(key), start, length)
        return _check_length(self._inner.open(key, start, length), promised, key)

    def size(self, key: str) -> int:
        return self._inner.size(key)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        return self._inner.list(prefix)

    def check(self) -> None:
        self._inner.check()


class Retrying:
    """Retries calls that failed with ``Unavailable``; a read goes on where it broke off. A put is not
    retried, because its chunks are gone; nor is a call that failed with ``Unusable``.

    ``attempts``: how often a call is made at most. ``sleep`` gets a doubling pause with jitter, in seconds.
    """

    def __init__(
        self, inner: BlobStore, attempts: int = 4, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._inner, self._attempts, self._sleep = inner, attempts, sleep

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        return self._inner.put(key, chunks)

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        first = self._retry(lambda: self._inner.open(key, start, length))
        return self._resume(first, key, start, length)

    def size(self, key: str) -> int:
        return self._retry(lambda: self._inner.size(key))

    def delete(self, key: str) -> None:
        self._retry(lambda: self._inner.delete(key))

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        return iter(self._retry(lambda: list(self._inner.list(prefix))))

    def check(self) -> None:
        self._inner.check()

    def _retry(self, act: Callable[[], T]) -> T:
        for attempt in range(1, self._attempts):
            try:
                return act()
            except Unusable:
                raise
            except Unavailable:
                self._sleep(_pause(attempt))
        return act()

    def _resume(self, chunks: Iterator[bytes], key: str, start: int, length: int | None) -> Iterator[bytes]:
        sent, failures = 0, 0
        while True:
            try:
                for chunk in chunks:
                    sent += len(chunk)
                    failures = 0 if chunk else failures
                    yield chunk
                return
            except Unavailable:
                failures += 1
                if failures >= self._attempts:
                    raise
                self._sleep(_pause(failures))
            finally:
                _close(chunks)
            left = None if length is None else length - sent
            chunks = self._retry(lambda left=left, begin=start + sent: self._inner.open(key, begin, left))  # type: ignore[misc]


@dataclass
class Meter:
    """Counts of a store: calls, errors and seconds by operation, bytes in and out."""

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0


class Metered:
    """Counts every call in ``meter``."""

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
        return self._count_read(chunks)

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

    def _count_read(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
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
            with spans.span(f"blobs.{operation}"):
                yield
            failed = False
        finally:
            with self._lock:
                self.meter.calls[operation] += 1
                self.meter.errors[operation] += failed
                self.meter.seconds[operation] += time.monotonic() - began  # type: ignore[assignment]


def _check_length(chunks: Iterator[bytes], promised: int, key: str) -> Iterator[bytes]:
    sent = 0
    try:
        for chunk in chunks:
            sent += len(chunk)
            if sent > promised:
                raise Unavailable(f"object {key}: more bytes than it has")
            yield chunk
    finally:
        _close(chunks)
    if sent < promised:
        raise Unavailable(f"object {key}: the store sent {sent} of {promised} bytes")


def _pause(attempt: int) -> float:
    return float(0.1 * 2**attempt * (0.5 + random.random() / 2))


def _close(chunks: Iterator[bytes]) -> None:
    close = getattr(chunks, "close", None)
    if close is not None:
        close()
