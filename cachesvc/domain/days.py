"""Say what the starts of one day came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cachesvc_client.wire.requests.reports import STATES


@dataclass(frozen=True, slots=True)
class DayOfStarts:
    """The starts of one day. ``day``: days of UTC since 1970. ``states``: starts by outcome. ``saved`` and
    ``spent``: seconds that restores saved, and that compiling took."""

    day: int
    states: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    saved: float = 0.0
    spent: float = 0.0


class Starts(Protocol):
    """Counts starts by outcome, and the seconds that they saved and spent."""

    @property
    def states(self) -> Mapping[str, int]: ...

    @property
    def saved(self) -> float: ...

    @property
    def spent(self) -> float: ...


@dataclass(frozen=True, slots=True)
class SumOfStarts:
    """The starts of some days or environments together."""

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


def sum_of_starts(rows: Sequence[Starts]) -> SumOfStarts:
    """Return the sums of ``rows``."""
    states = {state: sum(row.states[state] for row in rows) for state in STATES}
    return SumOfStarts(states, sum(row.saved for row in rows), sum(row.spent for row in rows))


def each_day(rows: Iterable[DayOfStarts], first: int, last: int) -> list[DayOfStarts]:
    """Returns one row for each day from ``first`` to ``last``: that of ``rows``, or one without starts."""
    by_day = {row.day: row for row in rows}
    return [by_day.get(day, DayOfStarts(day)) for day in range(first, last + 1)]
