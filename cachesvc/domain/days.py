"""Say what the starts of one day came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cachesvc_client.wire.requests.reports import STATES


@dataclass(frozen=True, slots=True)
class DayOfStarts:
    """The starts of one day. ``day``: days of UTC since 1970. ``states``: starts by outcome. ``saved`` and
    ``spent``: seconds that restores saved, and that compiling took."""

    day: int
    states: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    saved: float = 0.0
    spent: float = 0.0


@dataclass(frozen=True, slots=True)
class SumOfDays:
    """The starts of some days together, as `DayOfStarts` has those of one."""

    states: Mapping[str, int]
    saved: float
    spent: float

    @property
    def starts(self) -> int:
        """All starts."""
        return sum(self.states.values())

    @property
    def judged(self) -> int:
        """The starts that compiled something or would have."""
        return self.starts - self.states["unused"]


def sum_of_days(days: Sequence[DayOfStarts]) -> SumOfDays:
    """Returns the sums of ``days``."""
    states = {state: sum(day.states[state] for day in days) for state in STATES}
    return SumOfDays(states, sum(day.saved for day in days), sum(day.spent for day in days))


def each_day(rows: Iterable[DayOfStarts], first: int, last: int) -> list[DayOfStarts]:
    """Returns one row for each day from ``first`` to ``last``: that of ``rows``, or one without starts."""
    by_day = {row.day: row for row in rows}
    return [by_day.get(day, DayOfStarts(day)) for day in range(first, last + 1)]
