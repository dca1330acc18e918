"""Bounds how long an agent waits for peers before it takes what it lacks from the registry."""

from __future__ import annotations

import time
from collections.abc import Sequence

IDLE_SECONDS = 30.0
"""Seconds that an agent waits without a byte of any peer, beside those for the largest pack."""
IDLE_RATE = 8 << 20
"""Bytes of the largest pack for which it waits one second longer: another agent has to get it first."""
TOTAL_SECONDS = 60.0
"""Seconds that an agent waits in all, beside those for its bytes."""
TOTAL_RATE = 2 << 20
"""Bytes of all packs for which it waits one second longer."""


class Patience:
    """Is over when no peer has given a byte for some time, and in any case after some time in all.

    ``until``: the value of ``time.monotonic`` at which it is over in any case.
    """

    def __init__(self, idle: float, total: float) -> None:
        """``idle`` and ``total``: seconds."""
        self.until = time.monotonic() + total
        self._idle = idle
        self._idle_until = time.monotonic() + idle

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Patience:
        """Returns the patience for packs of these sizes in bytes."""
        largest, total = max(sizes, default=0), sum(sizes)
        return cls(IDLE_SECONDS + largest / IDLE_RATE, TOTAL_SECONDS + total / TOTAL_RATE)

    def note_progress(self) -> None:
        """Notes that bytes have come whose digest was right. What is over stays over."""
        if not self.is_over():
            self._idle_until = time.monotonic() + self._idle

    def end(self) -> None:
        """Ends it now."""
        self.until = self._idle_until = 0.0

    def is_over(self) -> bool:
        """Returns whether the registry is to be asked now for what is left."""
        return time.monotonic() >= min(self.until, self._idle_until)
