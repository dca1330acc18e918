"""Store what operators withdrew, so that no commit brings it back: also when its revision is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from cachesvc.schema.entries import MAX_WHY
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Namespace

from ..access.signers import revoked_why
from ..sql import Rows, insert_new, run_change, upsert
from ..tables import EntryRow, RevisionRow, WithdrawalRow, WithdrawnFileRow

_BATCH = 500
"""Digests in one statement."""
DELETED = "deleted"
"""The name and target of a withdrawn revision of which only the digest is known."""
_LOCKS = 7236457
"""The kind of PostgreSQL's advisory locks of namespaces; any constant."""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Why a revision is not taken: ``revision`` was withdrawn. ``older``: only its sequence is in the way."""

    revision: Digest
    why: str
    older: bool


class Withdrawals(Rows):
    """The revisions that were withdrawn, each with its pack and its files."""

    def lock(self, namespace: Namespace, *, alone: bool) -> None:
        """Waits until no other transaction withdraws something of a namespace (``alone``: or commits there),
        so that none misses what the other writes. To be called first: a commit that waits here has no
        row that a withdrawal needs. SQLite has one writer at a time anyway."""
        connection = self._session.connection()
        if connection.dialect.name == "postgresql":
            take = sa.func.pg_advisory_xact_lock if alone else sa.func.pg_advisory_xact_lock_shared
            connection.execute(sa.select(take(_LOCKS, sa.func.hashtext(namespace))))

    def of_same_pack(self, namespace: Namespace, pack: Digest) -> list[Digest]:
        """Returns the revisions of a namespace that have a pack."""
        query = (
            sa.select(col(RevisionRow.revision))
            .join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .where(col(RevisionRow.pack) == pack, col(EntryRow.namespace) == namespace)
        )
        return [Digest(row[0]) for row in self._run(query)]

    def add(self, revision: Digest, files: Sequence[Digest], now: int, why: str) -> None:
        """Records that a revision is withdrawn, with its bytes. ``files``: the digests of its files."""
        facts = (sa.literal(len(set(files))), sa.literal(now, sa.BigInteger()), sa.literal(why))
        _insert(self._session, col(RevisionRow.revision) == revision, col(RevisionRow.pack), *facts)
        rows = [{"digest": digest, "revision": revision} for digest in sorted(set(files))]
        insert_new(self._session, WithdrawnFileRow, rows)

    def add_deleted(self, revision: Digest, namespace: Namespace, now: int, why: str) -> None:
        """Record that a revision is withdrawn of which nothing is left here but its digest. It stands in the
        place of the facts that are not known, such as the pack: of bytes, no other revision is withheld."""
        texts = {"revision": revision, "namespace": namespace, "name": DELETED, "tag": "latest"}
        texts |= {"target": DELETED, "entry": revision, "pack": revision, "why": why}
        # Of a revoked signer's revision there may be a row already, without a pack: that one reaches nothing.
        packed = {"pack": sa.func.coalesce(col(WithdrawalRow.pack), revision)}
        insert = upsert(self._session, WithdrawalRow)
        insert = insert.on_conflict_do_update(index_elements=["revision"], set_=packed)
        self._run(insert, [{**texts, "sequence": 0, "files": 0, "since": now}])

    def namespace_of(self, revision: Digest) -> Namespace | None:
        """Returns the namespace of a withdrawn revision; ``None`` if it is not withdrawn."""
        row = self._session.get(WithdrawalRow, revision, populate_existing=True)
        return Namespace(row.namespace) if row is not None else None

    def release(self, revision: Digest) -> list[Digest]:
        """Takes back the withdrawal of a revision, and of all with its bytes in its namespace; returns
        them."""
        row = self._session.get(WithdrawalRow, revision, populate_existing=True)
        if row is None:
            return []
        same = col(WithdrawalRow.revision) == revision
        if row.pack is not None:
            of_pack = sa.and_(
                col(WithdrawalRow.namespace) == row.namespace, col(WithdrawalRow.pack) == row.pack
            )
            same = sa.or_(same, of_pack)
        query = sa.select(col(WithdrawalRow.revision)).where(same)
        revisions = [Digest(one[0]) for one in self._run(query)]
        self._change(sa.delete(WithdrawnFileRow).where(col(WithdrawnFileRow.revision).in_(revisions)))
        self._change(sa.delete(WithdrawalRow).where(same))
        return revisions

    def against(self, manifest: Manifest, revision: Digest) -> Withdrawal | None:
        """Returns the withdrawal that keeps a manifest from its namespace: of itself, of its pack, of a
        revision whose files it all holds, or of a newer one of its entry."""
        statement = manifest.statement
        older = sa.and_(
            col(WithdrawalRow.entry) == manifest.entry, col(WithdrawalRow.sequence) > statement.sequence
        )
        of_pack = sa.and_(
            col(WithdrawalRow.namespace) == statement.namespace,
            col(WithdrawalRow.pack) == manifest.pack.digest,
        )
        found = sa.or_(col(WithdrawalRow.revision) == revision, of_pack, older)
        query = sa.select(col(WithdrawalRow.revision), col(WithdrawalRow.why), col(WithdrawalRow.pack)).where(
            found
        )
        rows = self._run(query).all()
        for other, why, pack in rows:
            if other == revision or pack == manifest.pack.digest:
                return Withdrawal(Digest(other), why, older=False)
        held = self._held(statement.namespace, sorted({file.digest for file in manifest.files}))
        if held is not None:
            return held
        return Withdrawal(Digest(rows[0][0]), rows[0][1], older=True) if rows else None

    def _held(self, namespace: Namespace, files: Sequence[Digest]) -> Withdrawal | None:
        """Returns the withdrawal of a revision all of whose files are among ``files``."""
        here = col(WithdrawalRow.namespace) == namespace
        some = sa.select(col(WithdrawalRow.revision)).where(here, col(WithdrawalRow.files) > 0).limit(1)
        connection = self._session.connection()
        if connection.execute(some).first() is None:
            return None
        seen: dict[str, int] = {}
        for begin in range(0, len(files), _BATCH):
            query = (
                sa.select(col(WithdrawnFileRow.revision), sa.func.count())
                .join_from(
                    WithdrawnFileRow,
                    WithdrawalRow,
                    col(WithdrawalRow.revision) == col(WithdrawnFileRow.revision),
                )
                .where(here, col(WithdrawnFileRow.digest).in_(files[begin : begin + _BATCH]))
                .group_by(col(WithdrawnFileRow.revision))
            )
            for revision, number in connection.execute(query):
                seen[revision] = seen.get(revision, 0) + number
        rows = sa.select(col(WithdrawalRow.revision), col(WithdrawalRow.why), col(WithdrawalRow.files))
        for begin in range(0, len(seen), _BATCH):
            some_rows = rows.where(col(WithdrawalRow.revision).in_(list(seen)[begin : begin + _BATCH]))
            for revision, why, number in connection.execute(some_rows):
                if seen[revision] == number:
                    return Withdrawal(Digest(revision), why, older=False)
        return None


def keep_withdrawals(session: Session, entry: Digest, revision: Digest | None = None) -> None:
    """Prepares the deletion of an entry, or of one revision of it: what was withdrawn there stays refused,
    and so does everything that is older than the entry was. A revision of a revoked signer counts as
    withdrawn, but its bytes do not: an honest compile may make the same."""
    which = col(RevisionRow.entry) == entry
    withdrawn = col(WithdrawalRow.entry) == entry
    if revision is not None:
        which = sa.and_(which, col(RevisionRow.revision) == revision)
        withdrawn = col(WithdrawalRow.revision) == revision
    revoked = revoked_why(col(RevisionRow.signer), col(EntryRow.namespace))
    why = sa.func.substr(sa.literal("its signer was revoked: ") + revoked, 1, MAX_WHY)
    facts = (sa.null(), sa.literal(0), col(RevisionRow.published), why)
    _insert(session, sa.and_(which, revoked.is_not(None)), *facts)
    highest = sa.select(sa.func.max(col(RevisionRow.sequence))).where(col(RevisionRow.entry) == entry)
    sequence = sa.func.coalesce(highest.scalar_subquery(), col(WithdrawalRow.sequence))
    run_change(session, sa.update(WithdrawalRow).where(withdrawn).values(sequence=sequence))
    if revision is None:
        _keep_sequence(session, entry)


def _keep_sequence(session: Session, entry: Digest) -> None:
    """Prepares the deletion of an entry of the trunk: what is older than it was counts there no more, though
    nothing of it was withdrawn. Who recorded the first publications would offer them again. The row has a
    digest of its own in the place of a revision's."""
    marker = Digest.of(f"older than {entry}".encode())
    copied = (EntryRow.namespace, EntryRow.name, EntryRow.tag, EntryRow.target, EntryRow.entry)
    facts = (sa.literal(0), sa.literal(0, sa.BigInteger()), sa.literal("its entry was deleted"))
    query = sa.select(
        sa.literal(marker), *map(col, copied), col(EntryRow.head_sequence), sa.null(), *facts
    ).where(col(EntryRow.entry) == entry, col(EntryRow.lane) == "")
    names = "revision namespace name tag target entry sequence pack files since why".split()
    insert = upsert(session, WithdrawalRow).from_select(names, query)
    newest = {"sequence": insert.excluded.sequence}
    session.connection().execute(insert.on_conflict_do_update(index_elements=["revision"], set_=newest))


def _insert(session: Session, which: Any, pack: Any, files: Any, since: Any, why: Any) -> None:
    """Writes a row for each revision that ``which`` chooses and that has none."""
    copied = (RevisionRow.revision, EntryRow.namespace, EntryRow.name, EntryRow.tag, EntryRow.target)
    query = (
        sa.select(
            *map(col, copied), *map(col, (RevisionRow.entry, RevisionRow.sequence)), pack, files, since, why
        )
        .join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
        .where(which)
    )
    names = "revision namespace name tag target entry sequence pack files since why".split()
    insert = upsert(session, WithdrawalRow).from_select(names, query)
    session.connection().execute(insert.on_conflict_do_nothing())
