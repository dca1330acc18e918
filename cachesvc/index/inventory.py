"""Query what operators search and change: entries by their properties, revisions, sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from cachesvc.domain.access import ANY
from cachesvc_client.wire.admin import EntryRecord, RevisionRecord, Usage, Withheld
from cachesvc_client.wire.compare import ancestor_withdrawn
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target
from cachesvc_client.wire.reports import STATES

from .ancestry import withdrawn_ancestor, withdrawn_since
from .entries import between_spaces, compile_seconds, heads_where
from .fact_bytes import FACT_BYTES, first_within, rows_of
from .signers import revoked_why
from .sql import run_change
from .tables import AncestorRow, EntryRow, RevisionRow, UsefulnessRow, WithdrawalRow

PAGE_BYTES = 1 << 20
"""Bytes of the facts on one page of a search, at most."""


@dataclass(frozen=True, slots=True)
class Search:
    """Conditions of a search; ``None`` and empty match everything.

    ``lanes``: ``None`` is every lane, ``""`` the trunk. ``model``:
    the beginning of its hash, with or without ``sha256:``. ``torch``: a version or the beginning of one.
    ``gpu``: a part of its name, or of the instruction set of a CPU. ``dtype`` and ``shape``: one of the
    inputs' tensors has it."""

    namespace: str = ANY
    lanes: tuple[str, ...] | None = None
    name: str | None = None
    tag: str | None = None
    target: str | None = None
    model: str | None = None
    gpu: str | None = None
    torch: str | None = None
    dtype: str | None = None
    shape: str | None = None
    pinned: bool = False
    unused_since: int | None = None


class Inventory:
    """The queries of operators. They may be slow, so they have no database indexes of their own."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def search(
        self, search: Search, after: tuple[int, str] | None, limit: int
    ) -> tuple[list[EntryRecord], bool]:
        """Returns entries with their heads, newest first, and whether there are more; ``after``: (published,
        entry) of the last one seen. They have ``PAGE_BYTES`` of facts, at most."""
        query = (
            sa.select(col(EntryRow.entry), FACT_BYTES)
            .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
            .where(*_matching(search))
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
        rows = rows_of(connection, _heads(), col(EntryRow.entry), keys)
        return [_entry(row) for row in rows], len(keys) < len(sizes)

    def revisions(self, entry: Digest) -> list[RevisionRecord]:
        """Returns the revisions of an entry, newest first. Behind ``PAGE_BYTES`` of facts they have none."""
        query = sa.select(col(RevisionRow.revision), FACT_BYTES).where(col(RevisionRow.entry) == entry)
        connection = self._session.connection()
        sizes = connection.execute(query.order_by(col(RevisionRow.sequence).desc()))
        rows = [(key, size) for key, size in sizes]
        keys = first_within(rows, PAGE_BYTES)
        rest = [key for key, _ in rows[len(keys) :]]
        return [
            _revision(row)
            for facts, some in ((True, keys), (False, rest))
            for row in rows_of(connection, _revisions(facts), col(RevisionRow.revision), some)
        ]

    def revision(self, revision: Digest) -> RevisionRecord | None:
        """Returns one revision, if it exists."""
        query = _revisions().where(col(RevisionRow.revision) == revision)
        row: Any = self._session.connection().execute(query).first()
        return _revision(row) if row else None

    def envelope(self, revision: Digest) -> bytes | None:
        """Returns the exact bytes that were signed and published."""
        query = sa.select(col(RevisionRow.envelope)).where(col(RevisionRow.revision) == revision)
        envelope: Any = self._session.connection().execute(query).scalar()
        return None if envelope is None else bytes(envelope)

    def starting_with(self, kind: str, beginning: str, limit: int) -> list[Digest]:
        """Returns entries (``kind`` *entry*) or revisions whose digest begins with ``beginning``."""
        columns = [EntryRow.entry] if kind == "entry" else [RevisionRow.revision, WithdrawalRow.revision]
        found = [
            sa.select(column).where(column.startswith(beginning, autoescape=True))
            for column in map(col, columns)
        ]
        query = sa.union(*found).limit(limit)
        return [Digest(row[0]) for row in self._session.connection().execute(query)]

    def pin(self, revision: Digest, now: int | None) -> bool:
        """Pins a revision, or unpins it (``None``); false if it is gone. A second pin keeps the first
        time."""
        row = sa.update(RevisionRow).where(col(RevisionRow.revision) == revision)
        value = None if now is None else sa.func.coalesce(col(RevisionRow.pinned), now)
        return bool(run_change(self._session, row.values(pinned=value)))

    def quarantine(self, revision: Digest, now: int | None, why: str = "") -> bool:
        """Quarantines a revision, or releases it (``None``); returns whether that changed anything."""
        before = col(RevisionRow.quarantined)
        row = sa.update(RevisionRow).where(
            col(RevisionRow.revision) == revision,
            before.is_(None) if now is not None else before.is_not(None),
        )
        return bool(run_change(self._session, row.values(quarantined=now, quarantine_why=why or None)))

    def withheld(self, namespace: str, limit: int) -> list[Withheld]:
        """Returns what is withheld from everybody or from some environments, the newest first."""
        by_operators = sa.select(
            *_place(), col(RevisionRow.quarantined), col(RevisionRow.quarantine_why), sa.null()
        ).join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
        by_operators = by_operators.where(col(RevisionRow.quarantined).is_not(None))
        by_reports = (
            sa.select(
                *_place(),
                col(UsefulnessRow.quarantined),
                col(UsefulnessRow.why),
                col(UsefulnessRow.environment),
            )
            .join_from(UsefulnessRow, RevisionRow, col(RevisionRow.revision) == col(UsefulnessRow.revision))
            .join(EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .where(col(UsefulnessRow.quarantined).is_not(None))
            # Says no more than the join does, and has SQLite begin with the few rows that are withheld.
            .where(
                col(RevisionRow.revision).in_(
                    sa.select(col(UsefulnessRow.revision)).where(col(UsefulnessRow.quarantined).is_not(None))
                )
            )
        )
        withheld: list[Withheld] = []
        for query, where, words in (
            (by_operators, EntryRow.namespace, str),
            (by_reports, EntryRow.namespace, str),
            (_made_with_withdrawn(), EntryRow.namespace, ancestor_withdrawn),
            (_deleted(), WithdrawalRow.namespace, str),
        ):
            if namespace != ANY:
                query = query.where(col(where) == namespace)
            for row in self._session.connection().execute(query.limit(limit)):
                place = (Namespace(row[1]), ShortName(row[2]), Tag(row[3]), Target(row[4]))
                environment = Digest(row[7]) if row[7] else None
                withheld.append(Withheld(Digest(row[0]), *place, row[5], words(row[6] or ""), environment))
        return sorted(withheld, key=lambda row: (-row.since, row.revision))[:limit]

    def undescribed(self, limit: int) -> list[tuple[Digest, Digest, str, bytes]]:
        """Returns (entry, revision, signer, envelope) of entries that an older replica made, which no search
        by dtype or shape finds."""
        return heads_where(self._session, col(EntryRow.dtypes).is_(None), limit)

    def describe(self, entry: Digest, dtypes: Sequence[str], shapes: Sequence[str]) -> None:
        """Sets the dtypes and shapes by which a search finds an entry."""
        row = sa.update(EntryRow).where(col(EntryRow.entry) == entry)
        run_change(self._session, row.values(dtypes=between_spaces(dtypes), shapes=between_spaces(shapes)))

    def places(self, revisions: Sequence[Digest]) -> dict[Digest, tuple[Namespace, ShortName, Tag, Target]]:
        """Returns where revisions belong: namespace, name, tag and target of each that exists."""
        query = sa.select(*_place()).join_from(
            RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry)
        )
        rows = self._session.connection().execute(query.where(col(RevisionRow.revision).in_(revisions)))
        return {
            Digest(row[0]): (Namespace(row[1]), ShortName(row[2]), Tag(row[3]), Target(row[4]))
            for row in rows
        }

    def named(self, namespace: str) -> int:
        """Returns how many names there are."""
        names = sa.select(col(EntryRow.namespace), col(EntryRow.name)).distinct()
        if namespace != ANY:
            names = names.where(col(EntryRow.namespace) == namespace)
        query = sa.select(sa.func.count()).select_from(names.subquery())
        return int(self._session.connection().execute(query).scalar() or 0)

    def starts(self, namespace: str) -> tuple[dict[str, int], float, float]:
        """Returns (starts by state, seconds saved, seconds spent), as services reported them."""
        columns = [sa.func.sum(col(getattr(UsefulnessRow, name))) for name in (*STATES, "saved", "spent")]
        query = sa.select(*columns).select_from(UsefulnessRow)
        if namespace != ANY:
            query = query.join(RevisionRow, col(RevisionRow.revision) == col(UsefulnessRow.revision))
            query = query.join(EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            query = query.where(col(EntryRow.namespace) == namespace)
        *counts, saved, spent = self._session.connection().execute(query).one()
        return (
            {state: int(count or 0) for state, count in zip(STATES, counts, strict=True)},
            float(saved or 0.0),
            float(spent or 0.0),
        )

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
            row.entry: row for row in connection.execute(_heads().where(col(EntryRow.entry).in_(first)))
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
        return [row[0] for row in self._session.connection().execute(query)]

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
            if namespace != ANY:
                query = query.where(col(EntryRow.namespace) == namespace)
            found = [one[0] for one in self._session.connection().execute(query)]
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
            if namespace != ANY:
                query = query.where(col(EntryRow.namespace) == namespace)
            first += self._session.connection().execute(query)
        return [entry for _, entry in sorted(map(tuple, first))[:limit]]

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
        rows = self._session.connection().execute(query)
        return [(Digest(row[0]), row[1], row[2], row[3], row[4]) for row in rows]


def _deleted() -> Any:
    """Selects what was withdrawn and is refused still, though it was deleted."""
    row = WithdrawalRow
    columns = (row.revision, row.namespace, row.name, row.tag, row.target, row.since)
    why = (col(row.why) + " (deleted)").label("why")
    gone = ~sa.exists().where(col(RevisionRow.revision) == col(row.revision))
    return sa.select(*map(col, columns), why, sa.null()).where(gone)


def _made_with_withdrawn() -> Any:
    """Selects the revisions of which an ancestor was withdrawn."""
    ancestor = withdrawn_ancestor(col(RevisionRow.revision), col(EntryRow.namespace))
    reached = sa.select(col(AncestorRow.revision)).distinct().subquery("reached")
    since = withdrawn_since(col(RevisionRow.revision), col(EntryRow.namespace))
    found = (
        sa.select(*_place(), since, ancestor.label("why"), sa.null())
        .join_from(reached, RevisionRow, col(RevisionRow.revision) == reached.c.revision)
        .join(EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
    )
    return found.where(ancestor.is_not(None), col(RevisionRow.quarantined).is_(None))


def _place() -> list[Any]:
    columns = (EntryRow.namespace, EntryRow.name, EntryRow.tag, EntryRow.target)
    return [col(RevisionRow.revision), *map(col, columns)]


def _matching(search: Search) -> list[Any]:
    fingerprint: Any = col(RevisionRow.fingerprint)
    conditions: list[Any] = []
    for column, value in ((EntryRow.name, search.name), (EntryRow.tag, search.tag)):
        if value:
            conditions.append(col(column) == value)
    if search.namespace != ANY:
        conditions.append(col(EntryRow.namespace) == search.namespace)
    if search.lanes is not None:
        conditions.append(col(EntryRow.lane).in_(search.lanes))
    if search.target:
        conditions.append(col(EntryRow.target).contains(search.target, autoescape=True))
    if search.model:
        beginning = "sha256:" + search.model.removeprefix("sha256:")
        conditions.append(col(EntryRow.model).startswith(beginning, autoescape=True))
    if search.gpu:
        devices = (fingerprint[name].as_string() for name in ("gpu", "cpu_isa"))
        conditions.append(sa.or_(*(one.icontains(search.gpu, autoescape=True) for one in devices)))
    if search.torch:
        version = fingerprint["torch"].as_string()
        parts = [version.startswith(search.torch + end, autoescape=True) for end in ".+"]
        conditions.append(sa.or_(version == search.torch, *parts))
    for facet, value in ((EntryRow.dtypes, search.dtype), (EntryRow.shapes, search.shape)):
        if value:
            conditions.append(col(facet).contains(between_spaces([value]), autoescape=True))
    if search.pinned:
        conditions.append(col(RevisionRow.pinned).is_not(None))
    if search.unused_since is not None:
        last = sa.func.coalesce(col(RevisionRow.last_used), 0)
        conditions += [last < search.unused_since, col(RevisionRow.published) < search.unused_since]
    return conditions


def _heads() -> Any:
    return sa.select(
        EntryRow.__table__.c,  # type: ignore[attr-defined]
        col(RevisionRow.pack_size),
        col(RevisionRow.files),
        col(RevisionRow.fingerprint),
        col(RevisionRow.measured),
        col(RevisionRow.last_used),
        col(RevisionRow.pinned),
        col(RevisionRow.quarantined),
        col(RevisionRow.signer),
    ).join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))


def _entry(row: Any) -> EntryRecord:
    return EntryRecord(
        entry=Digest(row.entry),
        namespace=Namespace(row.namespace),
        name=ShortName(row.name),
        tag=Tag(row.tag),
        target=Target(row.target),
        revision=Digest(row.head),
        sequence=row.head_sequence,
        published=row.published,
        pack_size=row.pack_size,
        files=row.files,
        fingerprint=row.fingerprint,
        measured=row.measured,
        lane=Lane(row.lane) if row.lane else None,
        model=Digest(row.model) if row.model else None,
        last_used=row.last_used,
        pinned=row.pinned,
        quarantined=row.quarantined,
        dtypes=tuple((row.dtypes or "").split()),
        shapes=tuple((row.shapes or "").split()),
        signer=row.signer,
    )


def _usage(row: Any, size: int, hit: int, saved: float, of_line: int) -> Usage:
    return Usage(
        entry=Digest(row.entry),
        namespace=Namespace(row.namespace),
        name=ShortName(row.name),
        tag=Tag(row.tag),
        target=Target(row.target),
        bytes=size,
        hit=hit,
        saved=round(saved, 3),
        compile_seconds=compile_seconds(row.measured),
        last_used=row.published if row.last_used is None else row.last_used,
        head=Digest(row.head),
        published=row.published,
        hit_before=max(of_line - hit, 0),
    )


def _revisions(facts: bool = True) -> Any:
    left_out = {"envelope"} if facts else {"envelope", "fingerprint", "measured", "scopes"}
    named = (EntryRow.namespace, EntryRow.name, EntryRow.tag, EntryRow.target, EntryRow.lane, EntryRow.head)
    columns = [c for c in RevisionRow.__table__.c if c.name not in left_out]  # type: ignore[attr-defined]
    why = revoked_why(col(RevisionRow.signer), col(EntryRow.namespace)).label("signer_revoked")
    made_with = withdrawn_ancestor(col(RevisionRow.revision), col(EntryRow.namespace))
    more = (why, made_with.label("withdrawn_ancestor"))
    return sa.select(*columns, *map(col, named), *more).join_from(
        RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry)
    )


def _revision(row: Any) -> RevisionRecord:
    return RevisionRecord(
        revision=Digest(row.revision),
        entry=Digest(row.entry),
        namespace=Namespace(row.namespace),
        name=ShortName(row.name),
        tag=Tag(row.tag),
        target=Target(row.target),
        head=row.head == row.revision,
        sequence=row.sequence,
        published=row.published,
        published_by=row.published_by,
        signer=row.signer,
        pack=Digest(row.pack),
        pack_size=row.pack_size,
        files=row.files,
        fingerprint=getattr(row, "fingerprint", {}),
        scopes=tuple(getattr(row, "scopes", ())),
        measured=getattr(row, "measured", {}),
        lane=Lane(row.lane) if row.lane else None,
        expires=row.expires,
        last_used=row.last_used,
        pinned=row.pinned,
        quarantined=row.quarantined,
        why=row.quarantine_why or "",
        builder=row.builder,
        source_ref=row.source_ref,
        signer_revoked=row.signer_revoked,
        withdrawn_ancestor=row.withdrawn_ancestor,
    )
