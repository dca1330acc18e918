"""Store entries and their revisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from cachesvc.domain.access import ANY
from cachesvc.domain.difference import facets
from cachesvc.domain.offers import OfferFacts
from cachesvc.domain.retention import RevisionAge
from cachesvc.domain.revisions import Head
from cachesvc_client.wire.ancestors import Ancestor
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Unavailable
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target
from cachesvc_client.wire.protocol import EntrySummary, NameSummary
from cachesvc_client.wire.records import Manifest

from .ancestry import Ancestry, withdrawn_ancestor
from .fact_bytes import FACT_BYTES, first_within, rows_of
from .signers import revoked_why, signer_removed
from .sql import insert_unless_there, run_change, run_on_driver, upsert
from .tables import EntryRow, GraphKeyRow, NamespaceRow, RevisionRow
from .withdrawals import keep_withdrawals

LISTED = 5000
"""Rows of one listing, at most."""
_TRUNK_BYTES = 6 << 20
"""Bytes of the facts of the trunk's entries in one listing, at most."""
_LANES_BYTES = 512 << 10
"""Bytes of the facts of all lanes' entries in one listing, at most: they take no place of the trunk's."""
_NEEDED_AT_START = "!"
"""Stands before a head in ``EntryRow.keyed`` that no start may omit."""
_BATCH = 500
"""Revisions in one statement."""
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


@dataclass(frozen=True, slots=True)
class PackPlace(OfferFacts):
    """Where a revision's bytes are, and what decides whether it is offered."""

    lane: Lane | None
    namespace: Namespace
    key: str
    digest: Digest
    size: int


class Entries:
    """The entries, each a line of revisions. ``lanes`` in queries: ``None`` among them is the trunk."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def tags(self, namespace: Namespace, name: ShortName, lanes: Sequence[Lane | None] | None) -> list[Tag]:
        """Returns the tags that exist under a name, at most 100. ``lanes=None``: in every lane."""
        query = select(EntryRow.tag).where(*_under(namespace, name, lanes)).distinct().limit(100)
        return sorted(Tag(tag) for tag in self._session.exec(query))

    def place(self, revision: Digest) -> PackPlace | None:
        """Returns where the pack of a revision is."""
        row: Any = self._session.connection().execute(_PLACE, {"revision": revision}).first()
        if row is None:
            return None
        return _pack_place(revision, row)

    def of_packs(self, namespace: Namespace, packs: Sequence[Digest]) -> list[PackPlace]:
        """Return where the packs of the trunk of a namespace are that have one of these digests."""
        which = (col(EntryRow.namespace) == namespace, col(EntryRow.lane) == "")
        query = _PLACES.add_columns(col(RevisionRow.revision))
        query = query.where(*which, col(RevisionRow.pack).in_(packs)).limit(LISTED)
        rows: Any = self._session.connection().execute(query)
        return [_pack_place(Digest(revision), row) for *row, revision in rows]

    def summary(self, entry: Digest) -> tuple[Namespace, EntrySummary] | None:
        """Returns one entry with its head, and its namespace."""
        row: Any = (
            self._session.connection().execute(_summaries().where(col(EntryRow.entry) == entry)).first()
        )
        return (Namespace(row.namespace), _summary(row)) if row else None

    def listing(
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
        return ((entry, size) for entry, size in self._session.connection().execute(query))

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
        for name, tag, count, size in self._session.connection().execute(query):
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
        if namespace != ANY:
            query = query.where(col(EntryRow.namespace) == namespace)
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
        rows = self._session.connection().execute(query).all()
        return NameSummary(
            namespace,
            name,
            tuple(Tag(row[0]) for row in rows),
            sum(row[1] for row in rows),
            sum(int(row[2]) for row in rows),
        )

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
        self.add_graph_keys(published.revision, manifest.graph_keys)
        Ancestry(self._session).add(published.revision, published.ancestors)
        new_head = {
            "entry_": entry,
            "revision": published.revision,
            "keyed_": _keyed(published.revision, manifest.may_wait),
            "sequence": manifest.statement.sequence,
            "now": published.published,
        }
        run_on_driver(self._session.connection(), _MOVE, new_head)

    def add_graph_keys(self, revision: Digest, keys: Sequence[str]) -> None:
        """Records the keys of the graphs that a revision holds."""
        if not keys:
            return
        connection = self._session.connection()
        insert = upsert(GraphKeyRow.__table__, connection.dialect.name)  # type: ignore[attr-defined]
        rows = [{"key": key, "revision": revision} for key in keys]
        connection.execute(insert.on_conflict_do_nothing(), rows)

    def without_graph_keys(self, limit: int) -> list[tuple[Digest, Digest, str, bytes]]:
        """Returns (entry, head, signer, envelope) of entries whose head an older replica has published."""
        keyed = [col(EntryRow.head), _NEEDED_AT_START + col(EntryRow.head)]
        missing = sa.or_(col(EntryRow.keyed).is_(None), col(EntryRow.keyed).not_in(keyed))
        return heads_where(self._session, missing, limit)

    def note_graph_keys(self, entry: Digest, head: Digest, keys: Sequence[str], may_wait: bool) -> None:
        """Records the keys of a head, and whether a start may leave it out, unless the entry has another head
        by now."""
        row = sa.update(EntryRow).where(col(EntryRow.entry) == entry, col(EntryRow.head) == head)
        if run_change(self._session, row.values(keyed=_keyed(head, may_wait))):
            self.add_graph_keys(head, keys)

    def superseded(self, keep: int, before: int, namespace: Namespace | None = None) -> list[RevisionAge]:
        """Returns the revisions that were published before ``before`` and that have ``keep`` newer ones or
        more, each with how many; without their seconds of compilation."""
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
        return self._read_ages(query.where(col(RevisionRow.published) < before))

    def seconds_of(self, revisions: Sequence[Digest]) -> dict[Digest, float]:
        """Returns the seconds of compilation that each revision saves one start, as its publisher states
        them."""
        query = sa.select(col(RevisionRow.revision), col(RevisionRow.measured))
        seconds: dict[Digest, float] = {}
        for begin in range(0, len(revisions), _BATCH):
            some = query.where(col(RevisionRow.revision).in_(revisions[begin : begin + _BATCH]))
            rows = self._session.connection().execute(some)
            seconds.update((Digest(revision), compile_seconds(measured)) for revision, measured in rows)
        return seconds

    def idle(self, before: int, namespace: Namespace | None = None) -> list[RevisionAge]:
        """Returns all revisions of the entries whose head was neither published nor offered since
        ``before``, without their seconds of compilation."""
        since = sa.func.coalesce(col(RevisionRow.last_used), 0)
        idle = (
            sa.select(col(EntryRow.entry))
            .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
            .where(since < before, col(RevisionRow.published) < before)
        )
        return self._read_ages(_ages(namespace).where(col(RevisionRow.entry).in_(idle)))

    def ages(self, namespace: Namespace) -> list[RevisionAge]:
        """Returns all revisions of a namespace."""
        return self._read_ages(_ages(namespace, measured=col(RevisionRow.measured)))

    def _read_ages(self, query: Any) -> list[RevisionAge]:
        return [
            RevisionAge(
                entry=Digest(row.entry),
                revision=Digest(row.revision),
                sequence=row.sequence,
                published=row.published,
                is_head=bool(row.is_head),
                last_used=row.last_used,
                pinned=row.pinned is not None,
                size=row.pack_size,
                compile_seconds=compile_seconds(row.measured or {}),
                lane=row.lane,
                namespace=row.namespace,
                newer=row.newer,
            )
            for row in self._session.connection().execute(query)
        ]

    def used(self, revisions: Sequence[Digest], now: int) -> None:
        """Records that revisions were offered to a start."""
        rows = sa.update(RevisionRow).where(col(RevisionRow.revision).in_(revisions))
        run_change(self._session, rows.values(last_used=now))

    def remove(self, revision: Digest) -> str | None:
        """Deletes a revision and returns its pack's key; ``None`` if it is a head, is pinned or is gone."""
        is_head = sa.exists().where(col(EntryRow.head) == col(RevisionRow.revision))
        row = self._session.get(RevisionRow, revision, populate_existing=True)
        if row is not None:
            keep_withdrawals(self._session, Digest(row.entry), revision)
        unless_held = sa.delete(RevisionRow).where(
            col(RevisionRow.revision) == revision, ~is_head, col(RevisionRow.pinned).is_(None)
        )
        return row.pack_key if row is not None and run_change(self._session, unless_held) else None

    def remove_whole(self, entry: Digest, head: Digest) -> list[str] | None:
        """Deletes an entry with all its revisions, and returns the keys of their packs.

        Returns ``None`` and changes nothing if the entry has another head by now, or a pinned revision.
        """
        locked = sa.select(col(EntryRow.head)).where(col(EntryRow.entry) == entry).with_for_update()
        row: Any = self._session.connection().execute(locked).first()
        if row is None or row[0] != head:
            return None
        rows = self._session.connection().execute(
            sa.select(col(RevisionRow.pack_key), col(RevisionRow.pinned))
            .where(col(RevisionRow.entry) == entry)
            .with_for_update()  # a concurrent pin waits, and then finds no revision
        )
        packs = [(key, pinned) for key, pinned in rows]
        if any(pinned is not None for _, pinned in packs):
            return None
        keep_withdrawals(self._session, entry)
        run_change(self._session, sa.delete(RevisionRow).where(col(RevisionRow.entry) == entry))
        run_change(self._session, sa.delete(EntryRow).where(col(EntryRow.entry) == entry))
        return [key for key, _ in packs]


def _ages(namespace: Namespace | None, *, measured: Any = None, newer: Any = None) -> Any:
    """Selects what a `RevisionAge` needs; what was measured only on request, as its JSON takes longer than
    the rest."""
    query: Any = sa.select(
        col(RevisionRow.entry),
        col(RevisionRow.revision),
        col(RevisionRow.sequence),
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


def _keyed(head: Digest, may_wait: bool) -> str:
    return head if may_wait else _NEEDED_AT_START + head


def heads_where(
    session: Session, condition: sa.ColumnElement[bool], limit: int
) -> list[tuple[Digest, Digest, str, bytes]]:
    """Returns (entry, head, signer, envelope) of entries of which ``condition`` is true."""
    query = (
        sa.select(
            col(EntryRow.entry), col(RevisionRow.revision), col(RevisionRow.signer), col(RevisionRow.envelope)
        )
        .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
        .where(condition)
        .limit(limit)
    )
    rows = session.connection().execute(query)
    return [(Digest(row[0]), Digest(row[1]), row[2], bytes(row[3])) for row in rows]


def between_spaces(words: Sequence[str]) -> str:
    """Joins words with a space around each, so that a search can find a whole word."""
    return f" {' '.join(words)} "


def _under(
    namespace: Namespace, name: ShortName, lanes: Sequence[Lane | None] | None
) -> tuple[sa.ColumnElement[bool], ...]:
    named = (col(EntryRow.namespace) == namespace, col(EntryRow.name) == name)
    if lanes is None:
        return named
    return (*named, col(EntryRow.lane).in_([lane or "" for lane in lanes]))


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


def _summaries() -> Any:
    return sa.select(
        EntryRow.__table__.c,  # type: ignore[attr-defined]
        col(RevisionRow.pack_size),
        col(RevisionRow.files),
        col(RevisionRow.fingerprint),
        col(RevisionRow.scopes),
        col(RevisionRow.measured),
    ).join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))


def _summary(row: Any) -> EntrySummary:
    return EntrySummary(
        entry=Digest(row.entry),
        target=Target(row.target),
        tag=Tag(row.tag),
        revision=Digest(row.head),
        sequence=row.head_sequence,
        pack_size=row.pack_size,
        files=row.files,
        published=row.published,
        fingerprint=row.fingerprint,
        scopes=tuple(row.scopes),
        lane=Lane(row.lane) if row.lane else None,
        measured=row.measured,
    )


OFFER_FACTS: tuple[Any, ...] = (
    *map(col, (RevisionRow.quarantined, RevisionRow.quarantine_why)),
    *map(col, (RevisionRow.builder, RevisionRow.source_ref)),
    sa.select(col(NamespaceRow.require))
    .where(col(NamespaceRow.namespace) == col(EntryRow.namespace))
    .scalar_subquery(),
    signer_removed(col(RevisionRow.signer), col(EntryRow.namespace)),
    revoked_why(col(RevisionRow.signer), col(EntryRow.namespace)),
    withdrawn_ancestor(col(RevisionRow.revision), col(EntryRow.namespace)),
)
"""Selects the fields of `OfferFacts` behind ``lane``, in their order."""
_PLACES = sa.select(
    col(EntryRow.lane),
    *OFFER_FACTS,
    col(EntryRow.namespace),
    *map(col, (RevisionRow.pack_key, RevisionRow.pack, RevisionRow.pack_size)),
).join_from(RevisionRow, EntryRow, col(RevisionRow.entry) == col(EntryRow.entry))
"""Selects the fields of a `PackPlace` behind ``revision``, in their order."""
_PLACE = _PLACES.where(col(RevisionRow.revision) == sa.bindparam("revision"))


def _pack_place(revision: Digest, row: Any) -> PackPlace:
    lane, *facts, namespace, key, pack, size = row
    values = (Lane(lane) if lane else None, *facts, Namespace(namespace), key, Digest(pack), size)
    return PackPlace(revision, *values)
