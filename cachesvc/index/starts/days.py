"""Store the outcomes of starts by day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from cachesvc.domain.days import DayOfStarts
from cachesvc.domain.retention import DAY
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.reports import STATES

from ..sql import Rows, upsert, within
from ..tables import DailyStartsRow
from .usefulness import Earlier, Start

_SUMS = (*STATES, "saved", "spent")


@dataclass(frozen=True, slots=True)
class ColdStartOfDay:
    """A start that was offered nothing, which counts as a *miss*. ``earlier``: its last report, which is
    subtracted."""

    spent: float
    now: int
    earlier: Earlier | None = None
    state: str = "miss"
    saved: float = 0.0
    times: int = 1


class Days(Rows):
    """The starts of each namespace by day of UTC."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._table: Any = DailyStartsRow.__table__  # type: ignore[attr-defined]

    def add(self, namespace: Namespace, starts: Sequence[Start | ColdStartOfDay]) -> None:
        """Counts starts of one moment on its day, each in the place of its earlier report. An earlier report
        that this day has not counted is taken from the day before; no count falls below zero."""
        day = starts[0].now // DAY
        for start in starts:
            if start.earlier is not None:
                self._subtract(namespace, day, start.earlier)
        sums: dict[str, float] = {
            **{state: sum(start.times for start in starts if start.state == state) for state in STATES},
            "saved": sum(start.saved for start in starts),
            "spent": sum(start.spent for start in starts),
        }
        statement = upsert(self._session, DailyStartsRow).values(namespace=namespace, day=day, **sums)
        added = {name: self._table.c[name] + statement.excluded[name] for name in _SUMS}
        self._run(statement.on_conflict_do_update(index_elements=["namespace", "day"], set_=added))

    def since(self, namespace: str, day: int) -> list[DayOfStarts]:
        """Returns the days from ``day`` on that have starts, in order; ``*``: of all namespaces together."""
        columns = [sa.func.sum(self._table.c[name]) for name in _SUMS]
        query = (
            sa.select(self._table.c.day, *columns)
            .where(self._table.c.day >= day)
            .group_by(self._table.c.day)
            .order_by(self._table.c.day)
        )
        query = within(query, self._table.c.namespace, namespace)
        rows = self._run(query)
        return [
            DayOfStarts(day, dict(zip(STATES, map(int, counts), strict=True)), float(saved), float(spent))
            for day, *counts, saved, spent in rows
        ]

    def forget(self, before: int) -> int:
        """Deletes the days before the day ``before``; returns how many rows."""
        return self._change(sa.delete(DailyStartsRow).where(col(DailyStartsRow.day) < before))

    def _subtract(self, namespace: Namespace, day: int, earlier: Earlier) -> None:
        table = self._table.c
        values = {
            earlier.state: table[earlier.state] - 1,
            "saved": table.saved - earlier.saved,
            "spent": table.spent - earlier.spent,
        }
        for one in (day, day - 1):
            there = (table.namespace == namespace, table.day == one, table[earlier.state] > 0)
            if self._change(sa.update(self._table).where(*there).values(**values)):
                return
