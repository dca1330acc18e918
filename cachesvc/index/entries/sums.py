"""Sum up the entries of a namespace, and rank them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.access import ANY
from cachesvc.schema.upkeep import Usage
from cachesvc_client.wire.requests.reports import STATES

from ..sql import Rows, within
from ..tables import EntryRow, RevisionRow, UsefulnessRow
from .ages import compile_seconds
from .records import heads, record_of


class Sums(Rows):
    """Sums over entries and what services reported of them. They may be slow."""

    def named(self, namespace: str) -> int:
        """Returns how many names there are."""
        names = sa.select(col(EntryRow.namespace), col(EntryRow.name)).distinct()
        if namespace != ANY:
            names = names.where(col(EntryRow.namespace) == namespace)
        query = sa.select(sa.func.count()).select_from(names.subquery())
        return int(self._run(query).scalar() or 0)

    def starts(self, namespace: str) -> tuple[dict[str, int], float, float]:
        """Returns (starts by state, seconds saved, seconds spent), as services reported them."""
        columns = [sa.func.sum(col(getattr(UsefulnessRow, name))) for name in (*STATES, "saved", "spent")]
        query = sa.select(*columns).select_from(UsefulnessRow)
        if namespace != ANY:
            query = query.join(RevisionRow, col(RevisionRow.revision) == col(UsefulnessRow.revision))
            query = query.join(EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            query = query.where(col(EntryRow.namespace) == namespace)
        *counts, saved, spent = self._run(query).one()
        return (
            {state: int(count or 0) for state, count in zip(STATES, counts, strict=True)},
            float(saved or 0.0),
            float(spent or 0.0),
        )

    def starts_of_names(self, limit: int) -> dict[str, dict[str, int]]:
        """Returns starts by state of each ``namespace/name:tag``, as services reported them of the revisions
        that are kept; of those with most starts."""
        place = (col(EntryRow.namespace), col(EntryRow.name), col(EntryRow.tag))
        sums = [sa.func.sum(col(getattr(UsefulnessRow, state))) for state in STATES]
        all_starts = sum(sums[1:], start=sums[0])
        query = (
            sa.select(*place, *sums)
            .select_from(UsefulnessRow)
            .join(RevisionRow, col(RevisionRow.revision) == col(UsefulnessRow.revision))
            .join(EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .group_by(*place)
            .order_by(all_starts.desc(), *place)
            .limit(limit)
        )
        return {
            f"{namespace}/{name}:{tag}": dict(zip(STATES, map(int, counts), strict=True))
            for namespace, name, tag, *counts in self._run(query)
        }

    def ranked(self, namespace: str, by: str, limit: int) -> list[Usage]:
        """Returns the entries that are first by ``by``: *coldest*, *heaviest*, *dearest*. Bytes are those of
        the whole line; hits and seconds those of the head."""
        if not limit:
            return []
        first = self._first(namespace, by, limit)
        connection = self._session.connection()
        sizes = (
            sa.select(col(RevisionRow.entry), sa.func.sum(col(RevisionRow.pack_size)))
            .where(col(RevisionRow.entry).in_(first))
            .group_by(col(RevisionRow.entry))
        )
        bytes_of = {row[0]: int(row[1]) for row in connection.execute(sizes)}
        rows: dict[str, Any] = {
            row.entry: row for row in connection.execute(heads().where(col(EntryRow.entry).in_(first)))
        }
        starts = (
            sa.select(
                col(UsefulnessRow.revision),
                sa.func.sum(col(UsefulnessRow.hit)),
                sa.func.sum(col(UsefulnessRow.saved)),
            )
            .where(col(UsefulnessRow.revision).in_([row.head for row in rows.values()]))
            .group_by(col(UsefulnessRow.revision))
        )
        reported = {row[0]: (int(row[1]), float(row[2])) for row in connection.execute(starts)}
        hits = (
            sa.select(col(RevisionRow.entry), sa.func.sum(col(UsefulnessRow.hit)))
            .join_from(UsefulnessRow, RevisionRow, col(RevisionRow.revision) == col(UsefulnessRow.revision))
            .where(col(RevisionRow.entry).in_(first))
            .group_by(col(RevisionRow.entry))
        )
        of_line = {row[0]: int(row[1]) for row in connection.execute(hits)}
        return [
            _usage(
                rows[entry],
                bytes_of[entry],
                *reported.get(rows[entry].head, (0, 0.0)),
                of_line.get(entry, 0),
            )
            for entry in first
        ]

    def _first(self, namespace: str, by: str, limit: int) -> list[str]:
        """Returns the first entries in order, from database indexes alone."""
        if by == "coldest":
            return self._coldest(namespace, limit)
        if self._is_large(namespace):
            return self._first_by_sums(namespace, by, limit)
        query = sa.select(col(EntryRow.entry)).where(col(EntryRow.namespace) == namespace).limit(limit)
        if by == "heaviest":
            query = query.join_from(
                EntryRow, RevisionRow, col(RevisionRow.entry) == col(EntryRow.entry)
            ).group_by(col(EntryRow.entry))
            query = query.where(col(EntryRow.head).is_not(None))
            query = query.order_by(sa.func.sum(col(RevisionRow.pack_size)).desc(), col(EntryRow.entry))
        else:
            saved = sa.func.sum(col(UsefulnessRow.saved))
            query = query.join_from(
                UsefulnessRow, EntryRow, col(EntryRow.head) == col(UsefulnessRow.revision)
            ).group_by(col(EntryRow.entry))
            query = query.having(saved > 0).order_by(saved.desc(), col(EntryRow.entry))
        return [row[0] for row in self._run(query)]

    def _is_large(self, namespace: str) -> bool:
        """Returns whether a namespace holds so many of the entries that sums over all of them, without a
        join, take less time than a join of its own. The two took as long for a namespace with a sixth."""
        if namespace == ANY:
            return True
        count = sa.select(sa.func.count()).select_from(EntryRow)
        here = count.where(col(EntryRow.namespace) == namespace)
        connection = self._session.connection()
        return int(connection.execute(here).scalar_one()) * 6 > int(connection.execute(count).scalar_one())

    def _first_by_sums(self, namespace: str, by: str, limit: int) -> list[str]:
        """Returns the first entries of a large namespace, or of all. Sums without a join, in the order of an
        index, and searches only as many of the first sums as it takes: a join of all rows took most of the
        time."""
        heavy = by == "heaviest"
        row, amount = (RevisionRow, RevisionRow.pack_size) if heavy else (UsefulnessRow, UsefulnessRow.saved)
        key: Any = col(RevisionRow.entry) if heavy else col(UsefulnessRow.revision)
        total: Any = sa.func.sum(col(amount))
        sums = sa.select(key.label("key"), total.label("total")).select_from(row).group_by(key)
        sums = sums.having(total > 0).order_by(total.desc(), key)
        found: list[str] = []
        # Revisions that are no heads any more, and those of other namespaces, may be among the first: then
        # more of them are looked up.
        for wanted in (limit, 10 * limit, None):
            some = sums.limit(wanted).subquery()
            place = col(EntryRow.entry) if heavy else col(EntryRow.head)
            query = (
                sa.select(col(EntryRow.entry))
                .join_from(some, EntryRow, place == some.c.key)
                .where(col(EntryRow.head).is_not(None))
                .order_by(some.c.total.desc(), col(EntryRow.entry))
            )
            query = within(query, col(EntryRow.namespace), namespace)
            found = [one[0] for one in self._run(query)]
            if len(found) >= limit:
                break
        return found[:limit]

    def _coldest(self, namespace: str, limit: int) -> list[str]:
        """Returns the entries whose heads were not used, or else published, for the longest time."""
        used, published = col(RevisionRow.last_used), col(RevisionRow.published)
        first: list[Any] = []
        # Each of the two has the order of an index, so that only the first rows are read.
        for condition in (used.is_(None), used.is_not(None)):
            query = (
                sa.select(sa.func.coalesce(used, published), col(EntryRow.entry))
                .join_from(RevisionRow, EntryRow, col(EntryRow.head) == col(RevisionRow.revision))
                .where(condition)
                .order_by(used, published, col(RevisionRow.revision))
                .limit(limit)
            )
            query = within(query, col(EntryRow.namespace), namespace)
            first += self._run(query)
        return [entry for _, entry in sorted(map(tuple, first))[:limit]]


def _usage(row: Any, size: int, hit: int, saved: float, of_line: int) -> Usage:
    return record_of(
        Usage,
        row,
        bytes=size,
        hit=hit,
        saved=round(saved, 3),
        compile_seconds=compile_seconds(row.measured),
        last_used=row.published if row.last_used is None else row.last_used,
        hit_before=max(of_line - hit, 0),
    )
