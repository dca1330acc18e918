"""Say what the starts of one day came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cachesvc_client.wire.reports import STATES


@dataclass(frozen=True, slots=True)
class DayOfStarts:
    """The starts of one day. ``day``: days of UTC since 1970. ``states``: starts by outcome. ``saved`` and
    ``spent``: seconds that restores saved, and that compiling took."""

    day: int
    states: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    saved: float = 0.0
    spent: float = 0.0


def each_day(rows: Iterable[DayOfStarts], first: int, last: int) -> list[DayOfStarts]:
    """Returns one row for each day from ``first`` to ``last``: that of ``rows``, or one without starts."""
    by_day = {row.day: row for row in rows}
    return [by_day.get(day, DayOfStarts(day)) for day in range(first, last + 1)]
