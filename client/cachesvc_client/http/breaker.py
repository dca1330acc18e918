"""Spares a registry that fails, and the callers that would wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..wire.errors import CacheSvcError, Unavailable
from .origin import Origin

BREAKER_FAILURES = 3
"""Number of failures in a row after which the breaker opens."""
BREAKER_SECONDS = 10.0
"""Seconds for which an open breaker lets no call through."""


class Breaker:
    """Makes calls fail at once for ``BREAKER_SECONDS`` after ``failures`` failures in a row; then it lets one
    call through, whose result decides. Thread-safe."""

    def __init__(self, failures: float = BREAKER_FAILURES) -> None:
        self._most = failures
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    @property
    def open(self) -> bool:
        """Returns whether calls fail at once now."""
        return self._failures >= self._most and time.monotonic() < self._until

    def record_answer(self) -> None:
        """Records that the other side answers, whatever the answer is."""
        with self._lock:
            self._failures = 0

    @contextmanager
    def guard(self, origin: Origin) -> Iterator[None]:
        """Guards one try. Raises ``Unavailable`` if the breaker is open; counts errors that are worth a
        retry."""
        with self._lock:
            if self.open:
                left = self._until - time.monotonic()
                raise Unavailable(
                    f"{origin}: failed {self._failures} times in a row; next try in {left:.0f} s"
                )
            if self._failures >= self._most:  # this one is the trial; the others still fail at once
                self._until = time.monotonic() + BREAKER_SECONDS
        try:
            yield
        except CacheSvcError as error:
            with self._lock:
                self._failures = self._failures + 1 if error.retry else 0
                self._until = time.monotonic() + BREAKER_SECONDS
            raise
        self.record_answer()
