"""Store entries and their revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.difference import facets
from cachesvc.domain.revisions import Head
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Unavailable
from cachesvc_client.wire.manifest.ancestors import Ancestor
from cachesvc_client.wire.manifest.records import Manifest

from ..sql import Rows, insert_new, insert_unless_there, run_on_driver
from ..tables import EntryRow, GraphKeyRow, NamespaceRow, RevisionRow
from .ancestry import Ancestry
from .withdrawals import keep_withdrawals

_NEEDED_AT_START = "!"
"""Stands before a head in ``EntryRow.keyed`` that no start may omit."""
_LOCK_TRIES = 5
"""Attempts to lock an entry that collection may be removing."""


@dataclass(frozen=True, slots=True)
class Published:
    """What is recorded of a new revision beside its manifest."""

    revision: Digest
    envelope: bytes
    signer: str
    pack_key: str
    published: int
    published_by: str
    builder: str | None = None
    source_ref: str | None = None
    ancestors: Sequence[Ancestor] = ()


class Entries(Rows):
    """The entries, each a line of revisions."""

    def lock(self, manifest: Manifest, now: int) -> Head | None:
        """Returns the head of the manifest's entry; no one else moves it before this transaction ends.

        Makes the entry (and its namespace) if there is none.
        """
        entry = manifest.entry
        for _ in range(_LOCK_TRIES):
            row = run_on_driver(self._session.connection(), _LOCKED, {"entry": entry}).fetchone()
            if row is not None:
                return Head(Digest(row[0]), row[1]) if row[0] else None
            # The entry is new; or this loop made it, and collection removed it between the two statements.
            self._make(manifest, entry, now)
        raise Unavailable(f"entry {entry} is being removed", "try again")

    def _make(self, manifest: Manifest, entry: Digest, now: int) -> None:
        statement = manifest.statement
        dtypes, shapes = facets(manifest.workload)
        insert_unless_there(self._session, NamespaceRow, namespace=statement.namespace, created=now)
        insert_unless_there(
            self._session,
            EntryRow,
            entry=entry,
            namespace=statement.namespace,
            lane=statement.lane or "",
            name=statement.name,
            tag=statement.tag,
            target=statement.target,
            partition=manifest.partition,
            workload=manifest.workload.key,
            model=manifest.workload.model,
            head_sequence=0,
            published=0,
            dtypes=between_spaces(dtypes),
            shapes=between_spaces(shapes),
        )

    def advance(self, manifest: Manifest, published: Published) -> None:
        """Records a revision and makes it the head; the caller has called ``lock``."""
        entry = manifest.entry
        insert_unless_there(
            self._session,
            RevisionRow,
            revision=published.revision,
            entry=entry,
            sequence=manifest.statement.sequence,
            envelope=published.envelope,
            signer=published.signer,
            pack=manifest.pack.digest,
            pack_key=published.pack_key,
            pack_size=manifest.pack.size,
            files=len(manifest.files),
            fingerprint=manifest.fingerprint,
            scopes=list(manifest.scopes),
            measured=manifest.measured,
            expires=manifest.statement.expires,
            published=published.published,
            published_by=published.published_by,
            builder=published.builder,
            source_ref=published.source_ref,
        )
        self._add_graph_keys(published.revision, manifest.graph_keys)
        Ancestry(self._session).add(published.revision, published.ancestors)
        new_head = {
            "entry_": entry,
            "revision": published.revision,
            "keyed_": _keyed(published.revision, manifest.may_wait),
            "sequence": manifest.statement.sequence,
            "now": published.published,
        }
        run_on_driver(self._session.connection(), _MOVE, new_head)

    def _add_graph_keys(self, revision: Digest, keys: Sequence[str]) -> None:
        """Records the keys of the graphs that a revision holds."""
        insert_new(self._session, GraphKeyRow, [{"key": key, "revision": revision} for key in keys])

    def used(self, revisions: Sequence[Digest], now: int) -> None:
        """Records that revisions were offered to a start."""
        rows = sa.update(RevisionRow).where(col(RevisionRow.revision).in_(revisions))
        self._change(rows.values(last_used=now))

    def remove(self, revision: Digest) -> str | None:
        """Deletes a revision and returns its pack's key; ``None`` if it is a head, is pinned or is gone."""
        is_head = sa.exists().where(col(EntryRow.head) == col(RevisionRow.revision))
        row = self._session.get(RevisionRow, revision, populate_existing=True)
        if row is not None:
            keep_withdrawals(self._session, Digest(row.entry), revision)
        unless_held = sa.delete(RevisionRow).where(
            col(RevisionRow.revision) == revision, ~is_head, col(RevisionRow.pinned).is_(None)
        )
        return row.pack_key if row is not None and self._change(unless_held) else None

    def remove_whole(self, entry: Digest, head: Digest) -> list[str] | None:
        """Deletes an entry with all its revisions, and returns the keys of their packs.

        Returns ``None`` and changes nothing if the entry has another head by now, or a pinned revision.
        """
        locked = sa.select(col(EntryRow.head)).where(col(EntryRow.entry) == entry).with_for_update()
        row: Any = self._run(locked).first()
        if row is None or row[0] != head:
            return None
        rows = self._run(
            sa.select(col(RevisionRow.pack_key), col(RevisionRow.pinned))
            .where(col(RevisionRow.entry) == entry)
            .with_for_update()  # a concurrent pin waits, and then finds no revision
        )
        packs = [(key, pinned) for key, pinned in rows]
        if any(pinned is not None for _, pinned in packs):
            return None
        keep_withdrawals(self._session, entry)
        self._change(sa.delete(RevisionRow).where(col(RevisionRow.entry) == entry))
        self._change(sa.delete(EntryRow).where(col(EntryRow.entry) == entry))
        return [key for key, _ in packs]


def _keyed(head: Digest, may_wait: bool) -> str:
    return head if may_wait else _NEEDED_AT_START + head


def between_spaces(words: Sequence[str]) -> str:
    """Joins words with a space around each, so that a search can find a whole word."""
    return f" {' '.join(words)} "


_LOCKED = (
    sa.select(col(EntryRow.head), col(EntryRow.head_sequence))
    .where(col(EntryRow.entry) == sa.bindparam("entry"))
    .with_for_update()
)
_MOVE = (
    sa.update(EntryRow)
    .where(col(EntryRow.entry) == sa.bindparam("entry_"))
    .values(
        head=sa.bindparam("revision"),
        keyed=sa.bindparam("keyed_"),
        head_sequence=sa.bindparam("sequence"),
        published=sa.bindparam("now"),
    )
)
