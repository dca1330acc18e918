"""Query what operators search and change: entries by their properties, and revisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.schema.entries import EntryRecord, RevisionRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Namespace, ShortName, Tag, Target

from ..sql import Rows
from ..tables import EntryRow, RevisionRow, WithdrawalRow
from .fact_bytes import FACT_BYTES, first_within, rows_of
from .records import entry_record, heads, place_columns, revision_record, revisions
from .search import Search, conditions

PAGE_BYTES = 1 << 20
"""Bytes of the facts on one page of a search, at most."""


class Inventory(Rows):
    """The queries of operators. They may be slow, so they have no database indexes of their own."""

    def search(
        self, search: Search, after: tuple[int, str] | None, limit: int
    ) -> tuple[list[EntryRecord], bool]:
        """Returns entries with their heads, newest first, and whether there are more; ``after``: (published,
        entry) of the last one seen. They have ``PAGE_BYTES`` of facts, at most."""
        query = (
            sa.select(col(EntryRow.entry), FACT_BYTES)
            .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
            .where(*conditions(search))
            .order_by(col(EntryRow.published).desc(), col(EntryRow.entry).desc())
            .limit(limit + 1)
        )
        if after is not None:
            published, entry = after
            # The first condition says what the second does, in a form that the index serves.
            later = sa.or_(col(EntryRow.published) < published, col(EntryRow.entry) < entry)
            query = query.where(col(EntryRow.published) <= published, later)
        connection = self._session.connection()
        sizes = [(key, size) for key, size in connection.execute(query)]
        keys = first_within(sizes[:limit], PAGE_BYTES)
        rows = rows_of(connection, heads(), col(EntryRow.entry), keys)
        return [entry_record(row) for row in rows], len(keys) < len(sizes)

    def revisions(self, entry: Digest) -> list[RevisionRecord]:
        """Returns the revisions of an entry, newest first. Behind ``PAGE_BYTES`` of facts they have none."""
        query = sa.select(col(RevisionRow.revision), FACT_BYTES).where(col(RevisionRow.entry) == entry)
        connection = self._session.connection()
        sizes = connection.execute(query.order_by(col(RevisionRow.sequence).desc()))
        rows = [(key, size) for key, size in sizes]
        keys = first_within(rows, PAGE_BYTES)
        rest = [key for key, _ in rows[len(keys) :]]
        return [
            revision_record(row)
            for facts, some in ((True, keys), (False, rest))
            for row in rows_of(connection, revisions(facts), col(RevisionRow.revision), some)
        ]

    def revision(self, revision: Digest) -> RevisionRecord | None:
        """Returns one revision, if it exists."""
        query = revisions().where(col(RevisionRow.revision) == revision)
        row: Any = self._run(query).first()
        return revision_record(row) if row else None

    def envelope(self, revision: Digest) -> bytes | None:
        """Returns the exact bytes that were signed and published."""
        query = sa.select(col(RevisionRow.envelope)).where(col(RevisionRow.revision) == revision)
        envelope: Any = self._run(query).scalar()
        return None if envelope is None else bytes(envelope)

    def starting_with(self, kind: str, beginning: str, limit: int) -> list[Digest]:
        """Returns entries (``kind`` *entry*) or revisions whose digest begins with ``beginning``."""
        columns = [EntryRow.entry] if kind == "entry" else [RevisionRow.revision, WithdrawalRow.revision]
        found = [
            sa.select(column).where(column.startswith(beginning, autoescape=True))
            for column in map(col, columns)
        ]
        query = sa.union(*found).limit(limit)
        return [Digest(row[0]) for row in self._run(query)]

    def pin(self, revision: Digest, now: int | None) -> bool:
        """Pins a revision, or unpins it (``None``); false if it is gone. A second pin keeps the first
        time."""
        row = sa.update(RevisionRow).where(col(RevisionRow.revision) == revision)
        value = None if now is None else sa.func.coalesce(col(RevisionRow.pinned), now)
        return bool(self._change(row.values(pinned=value)))

    def quarantine(self, revision: Digest, now: int | None, why: str = "") -> bool:
        """Quarantines a revision, or releases it (``None``); returns whether that changed anything."""
        before = col(RevisionRow.quarantined)
        row = sa.update(RevisionRow).where(
            col(RevisionRow.revision) == revision,
            before.is_(None) if now is not None else before.is_not(None),
        )
        return bool(self._change(row.values(quarantined=now, quarantine_why=why or None)))

    def places(self, revisions: Sequence[Digest]) -> dict[Digest, tuple[Namespace, ShortName, Tag, Target]]:
        """Returns where revisions belong: namespace, name, tag and target of each that exists."""
        query = sa.select(*place_columns()).join_from(
            RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry)
        )
        rows = self._run(query.where(col(RevisionRow.revision).in_(revisions)))
        return {
            Digest(row[0]): (Namespace(row[1]), ShortName(row[2]), Tag(row[3]), Target(row[4]))
            for row in rows
        }

    def packs(self, after: str, limit: int) -> list[tuple[Digest, str, str, str, int]]:
        """Returns (revision, signer, blob key, pack's digest, size) by revision, beyond ``after``."""
        query = (
            sa.select(
                col(RevisionRow.revision),
                col(RevisionRow.signer),
                col(RevisionRow.pack_key),
                col(RevisionRow.pack),
                col(RevisionRow.pack_size),
            )
            .where(col(RevisionRow.revision) > after)
            .order_by(col(RevisionRow.revision))
            .limit(limit)
        )
        rows = self._run(query)
        return [(Digest(row[0]), row[1], row[2], row[3], row[4]) for row in rows]
