"""Measure compiled and eager calls in turn, and say what the difference is worth. Pure but for the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

BLOCK_CALLS = 2
"""Number of timed calls of one function before the other one's turn. An untimed call comes before them, which
brings its code and data back into the CPU's caches."""
BUDGET_SECONDS = 10.0
"""Seconds after which a measurement ends, however many calls were asked for; a block that began is ended."""
NOISY = 0.25
"""Distance of the quartiles, as a share of the median, above which a time counts as noisy."""

Faster = Literal["", "compiled", "eager", "unclear"]
"""Which of the two is faster by more than the spread; *unclear*: neither; empty: not measured."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Holds the median of the seconds of steady calls, with the quartiles ``low`` and ``high``."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Steady:
        """Return median and quartiles of at least two times."""
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high)

    @classmethod
    def total(cls, parts: Iterable[Steady]) -> Steady:
        """Return the sums; the sum of the quartiles is at least as wide as the quartiles of the sum."""
        every = list(parts)
        return cls(*(sum(getattr(one, field) for one in every) for field in ("median", "low", "high")))

    @property
    def noisy(self) -> bool:
        """Return whether the calls differ so much that the median says little."""
        return self.high - self.low > NOISY * self.median


def alternate(
    calls: int, *, compiled: Callable[[], float], eager: Callable[[], float]
) -> tuple[Steady, Steady]:
    """Call both in turn, in short blocks, so that what else the machine does slows both alike.

    Each function makes one call and returns its seconds. ``calls``: timed calls of each; at least two are
    made. Returns the times of ``compiled`` and of ``eager``.
    """
    times: tuple[list[float], list[float]] = ([], [])
    end = time.monotonic() + BUDGET_SECONDS
    while len(times[0]) < max(calls, BLOCK_CALLS):
        for function, seconds in zip((compiled, eager), times, strict=True):
            function()
            seconds += [function() for _ in range(BLOCK_CALLS)]
        if time.monotonic() > end:
            break
    return Steady.of(times[0]), Steady.of(times[1])


def faster(compiled: Steady | None, eager: Steady | None) -> Faster:
    """Return which one is faster: its upper quartile lies below the other's lower one."""
    if compiled is None or eager is None:
        return ""
    if compiled.high < eager.low:
        return "compiled"
    return "eager" if eager.high < compiled.low else "unclear"
