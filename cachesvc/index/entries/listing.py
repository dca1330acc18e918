"""List entries and the names that they have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag
from cachesvc_client.wire.requests.protocol import EntrySummary, NameSummary

from ..sql import Rows, within
from ..tables import EntryRow, RevisionRow
from .fact_bytes import FACT_BYTES, first_within, rows_of
from .records import heads, record_of

LISTED = 5000
"""Rows of one listing, at most."""
_TRUNK_BYTES = 6 << 20
"""Bytes of the facts of the trunk's entries in one listing, at most."""
_LANES_BYTES = 512 << 10
"""Bytes of the facts of all lanes' entries in one listing, at most: they take no place of the trunk's."""


class Listing(Rows):
    """Lists entries and names. ``lanes`` in queries: ``None`` among them is the trunk."""

    def tags(self, namespace: Namespace, name: ShortName, lanes: Sequence[Lane | None] | None) -> list[Tag]:
        """Returns the tags that exist under a name, at most 100. ``lanes=None``: in every lane."""
        query = select(EntryRow.tag).where(*_under(namespace, name, lanes)).distinct().limit(100)
        return sorted(Tag(tag) for tag in self._session.exec(query))

    def summary(self, entry: Digest) -> tuple[Namespace, EntrySummary] | None:
        """Returns one entry with its head, and its namespace."""
        row: Any = self._run(_summaries().where(col(EntryRow.entry) == entry)).first()
        return (Namespace(row.namespace), _summary(row)) if row else None

    def entries(
        self,
        namespace: Namespace,
        lanes: Sequence[Lane | None] | None,
        name: ShortName | None,
        tag: Tag | None,
    ) -> list[EntrySummary]:
        """Returns entries of a namespace, newest first, at most ``LISTED`` of trunk and lanes each, and
        no more than have some bytes of facts. Of lanes the newest of each are chosen first. ``lanes=None``:
        every lane."""
        where = [col(EntryRow.namespace) == namespace]
        if lanes is not None:
            where.append(col(EntryRow.lane).in_([lane or "" for lane in lanes]))
        if name is not None:
            where.append(col(EntryRow.name) == name)
        if tag is not None:
            where.append(col(EntryRow.tag) == tag)
        newest = (col(EntryRow.published).desc(), col(EntryRow.entry))
        rank = sa.func.row_number().over(partition_by=col(EntryRow.lane), order_by=newest)
        of_trunk = self._sizes([*where, col(EntryRow.lane) == ""], newest)
        of_lanes = self._sizes([*where, col(EntryRow.lane) != ""], (rank, *newest))
        keys = [*first_within(of_trunk, _TRUNK_BYTES), *first_within(of_lanes, _LANES_BYTES)]
        rows = rows_of(self._session.connection(), _summaries(), col(EntryRow.entry), keys)
        return sorted(map(_summary, rows), key=lambda row: (-row.published, row.entry))

    def _sizes(self, where: Sequence[Any], order: Sequence[Any]) -> Iterable[tuple[str, int]]:
        query = (
            sa.select(col(EntryRow.entry), FACT_BYTES)
            .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
            .where(*where)
            .order_by(*order)
            .limit(LISTED)
        )
        return ((entry, size) for entry, size in self._run(query))

    def names(self, namespace: Namespace, lanes: Sequence[Lane | None] | None) -> list[NameSummary]:
        """Returns the names of a namespace, in alphabetical order."""
        query = (
            sa.select(
                col(EntryRow.name),
                col(EntryRow.tag),
                sa.func.count(),
                sa.func.sum(col(RevisionRow.pack_size)),
            )
            .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
            .where(col(EntryRow.namespace) == namespace)
            .group_by(col(EntryRow.name), col(EntryRow.tag))
            .order_by(col(EntryRow.name), col(EntryRow.tag))
        )
        if lanes is not None:
            query = query.where(col(EntryRow.lane).in_([lane or "" for lane in lanes]))
        tags: dict[str, list[Any]] = {}
        for name, tag, count, size in self._run(query):
            tags.setdefault(name, []).append((Tag(tag), count, int(size)))
        return [
            NameSummary(
                namespace,
                ShortName(name),
                tuple(tag for tag, _, _ in rows),
                sum(count for _, count, _ in rows),
                sum(size for _, _, size in rows),
            )
            for name, rows in tags.items()
        ]

    def find_names(
        self,
        namespace: str,
        lanes: Sequence[Lane | None] | None,
        text: str,
        after: tuple[str, str],
        limit: int,
    ) -> list[NameSummary]:
        """Returns names in alphabetical order, of one namespace or for ``*`` of all: those that have ``text``
        in them and come behind ``after`` (namespace, name). ``lanes=None``: every lane."""
        place = (col(EntryRow.namespace), col(EntryRow.name))
        # The first condition says a part of what the second does, in a form that the index serves.
        query = (
            sa.select(*place)
            .distinct()
            .where(col(EntryRow.namespace) >= after[0], sa.tuple_(*place) > sa.tuple_(*after))
        )
        query = within(query, col(EntryRow.namespace), namespace)
        if lanes is not None:
            query = query.where(col(EntryRow.lane).in_([lane or "" for lane in lanes]))
        if text:
            whole = col(EntryRow.namespace) + "/" + col(EntryRow.name)
            query = query.where(whole.contains(text, autoescape=True))
        connection = self._session.connection()
        rows = connection.execute(query.order_by(*place).limit(limit)).all()
        return [self._name(Namespace(row[0]), ShortName(row[1]), lanes) for row in rows]

    def _name(
        self, namespace: Namespace, name: ShortName, lanes: Sequence[Lane | None] | None
    ) -> NameSummary:
        query = (
            sa.select(col(EntryRow.tag), sa.func.count(), sa.func.sum(col(RevisionRow.pack_size)))
            .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
            .where(*_under(namespace, name, lanes))
            .group_by(col(EntryRow.tag))
            .order_by(col(EntryRow.tag))
        )
        rows = self._run(query).all()
        return NameSummary(
            namespace,
            name,
            tuple(Tag(row[0]) for row in rows),
            sum(row[1] for row in rows),
            sum(int(row[2]) for row in rows),
        )


def _under(
    namespace: Namespace, name: ShortName, lanes: Sequence[Lane | None] | None
) -> tuple[sa.ColumnElement[bool], ...]:
    named = (col(EntryRow.namespace) == namespace, col(EntryRow.name) == name)
    if lanes is None:
        return named
    return (*named, col(EntryRow.lane).in_([lane or "" for lane in lanes]))


def _summaries() -> Any:
    return heads().add_columns(col(RevisionRow.scopes))


def _summary(row: Any) -> EntrySummary:
    return record_of(EntrySummary, row, revision=Digest(row.head), sequence=row.head_sequence)
