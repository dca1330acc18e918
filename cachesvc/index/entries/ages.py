"""Read what retention decides by: how old revisions are, when they were used, what they save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.retention import RevisionAge
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag

from ..sql import Rows
from ..tables import EntryRow, RevisionRow
from .heads import Place
from .records import record_of

_BATCH = 500
"""Revisions in one statement."""


class Ages(Rows):
    """Reads ages of revisions."""

    def superseded(
        self, keep: int, before: int, namespace: Namespace | None = None
    ) -> dict[Namespace, list[RevisionAge]]:
        """Return by namespace the revisions that were published before ``before`` and that have ``keep``
        newer ones or more, each with how many; without their seconds of compilation."""
        full = (
            sa.select(col(RevisionRow.entry)).group_by(col(RevisionRow.entry)).having(sa.func.count() > keep)
        )
        if namespace is not None:
            here = sa.select(col(EntryRow.entry)).where(col(EntryRow.namespace) == namespace)
            full = full.where(col(RevisionRow.entry).in_(here))
        newest_first = sa.func.row_number().over(
            partition_by=col(RevisionRow.entry), order_by=col(RevisionRow.sequence).desc()
        )
        lines = (
            sa.select(col(RevisionRow.revision), (newest_first - 1).label("newer"))
            .where(col(RevisionRow.entry).in_(full))
            .subquery()
        )
        kept_by_none = sa.select(lines.c.revision, lines.c.newer).where(lines.c.newer >= keep).subquery()
        query = _ages(namespace, newer=kept_by_none.c.newer).join(
            kept_by_none, kept_by_none.c.revision == col(RevisionRow.revision)
        )
        return self._by_namespace(query.where(col(RevisionRow.published) < before))

    def seconds_of(self, revisions: Sequence[Digest]) -> dict[Digest, float]:
        """Returns the seconds of compilation that each revision saves one start, as its publisher states
        them."""
        query = sa.select(col(RevisionRow.revision), col(RevisionRow.measured))
        seconds: dict[Digest, float] = {}
        for begin in range(0, len(revisions), _BATCH):
            some = query.where(col(RevisionRow.revision).in_(revisions[begin : begin + _BATCH]))
            rows = self._run(some)
            seconds.update((Digest(revision), compile_seconds(measured)) for revision, measured in rows)
        return seconds

    def idle(self, before: int, namespace: Namespace | None = None) -> dict[Namespace, list[RevisionAge]]:
        """Return by namespace all revisions of the entries whose head was neither published nor offered
        since ``before``, without their seconds of compilation."""
        since = sa.func.coalesce(col(RevisionRow.last_used), 0)
        idle = (
            sa.select(col(EntryRow.entry))
            .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
            .where(since < before, col(RevisionRow.published) < before)
        )
        return self._by_namespace(_ages(namespace).where(col(RevisionRow.entry).in_(idle)))

    def of_entries(self, entries: Sequence[Digest]) -> list[RevisionAge]:
        """Returns all revisions of the entries, without their seconds of compilation."""
        rows: list[RevisionAge] = []
        for begin in range(0, len(entries), _BATCH):
            some = entries[begin : begin + _BATCH]
            rows += self._read(_ages(None).where(col(RevisionRow.entry).in_(some)))
        return rows

    def with_older_models(self, before: int, namespace: Namespace | None = None) -> list[Place]:
        """Returns where a target has entries of several models for equal environments, and one of these was
        neither published nor used since ``before``; each lane by itself."""
        idle = sa.and_(
            col(EntryRow.published) < before, sa.func.coalesce(col(RevisionRow.last_used), 0) < before
        )
        place = [col(getattr(EntryRow, name)) for name in Place._fields]
        # Most names have one model: an index alone says so, and no entry of theirs is read.
        several = (
            sa.select(*place)
            .where(col(EntryRow.model).is_not(None))
            .where(*([] if namespace is None else [col(EntryRow.namespace) == namespace]))
            .group_by(*place)
            .having(sa.func.min(col(EntryRow.model)) != sa.func.max(col(EntryRow.model)))
            .subquery()
        )
        query = (
            sa.select(*place)
            .join_from(
                several,
                EntryRow,
                sa.and_(*(col(getattr(EntryRow, name)) == several.c[name] for name in Place._fields)),
            )
            .join(RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
            .where(col(EntryRow.model).is_not(None))
            .group_by(*place, col(EntryRow.target), col(EntryRow.partition))
            .having(
                sa.func.count(sa.distinct(col(EntryRow.model))) > 1,
                sa.func.sum(sa.case((idle, 1), else_=0)) > 0,
            )
        )
        rows = self._run(query.distinct())
        return [
            Place(Namespace(of), ShortName(name), Tag(tag), Lane(lane) if lane else None)
            for of, name, tag, lane in rows
        ]

    def of_namespace(self, namespace: Namespace) -> list[RevisionAge]:
        """Returns all revisions of a namespace."""
        return self._read(_ages(namespace, measured=col(RevisionRow.measured)))

    def _by_namespace(self, query: Any) -> dict[Namespace, list[RevisionAge]]:
        groups: dict[Namespace, list[RevisionAge]] = {}
        for row in self._run(query):
            groups.setdefault(Namespace(row.namespace), []).append(_age(row))
        return groups

    def _read(self, query: Any) -> list[RevisionAge]:
        return [_age(row) for row in self._run(query)]


def _age(row: Any) -> RevisionAge:
    return record_of(
        RevisionAge,
        row,
        is_head=bool(row.is_head),
        pinned=row.pinned is not None,
        size=row.pack_size,
        compile_seconds=compile_seconds(row.measured or {}),
        lane=row.lane,
    )


def _ages(namespace: Namespace | None, *, measured: Any = None, newer: Any = None) -> Any:
    """Selects what a `RevisionAge` needs; what was measured only on request, as its JSON takes longer than
    the rest."""
    query: Any = sa.select(
        col(RevisionRow.entry),
        col(RevisionRow.revision),
        col(RevisionRow.published),
        (col(EntryRow.head) == col(RevisionRow.revision)).label("is_head"),
        col(RevisionRow.last_used),
        col(RevisionRow.pinned),
        col(RevisionRow.pack_size),
        col(EntryRow.lane),
        col(EntryRow.namespace),
        sa.null().label("measured") if measured is None else measured,
        sa.literal(0).label("newer") if newer is None else newer,
    ).join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
    return query if namespace is None else query.where(col(EntryRow.namespace) == namespace)


def compile_seconds(measured: dict[str, float]) -> float:
    """Returns the seconds that the builder spent: the longer of compilation and first call; 0 if not
    measured."""
    return max(measured.get("compile", 0.0), measured.get("first_call", 0.0), 0.0)
