"""Read the heads under a name, with what decides whether a resolve answers them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.offers import OfferFacts
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target
from cachesvc_client.wire.partitions import PublishedAt

from ..access.signers import revoked_why, signer_removed
from ..sql import fetch_each_on_driver
from ..tables import EntryRow, GraphKeyRow, NamespaceRow, RevisionRow, UsefulnessRow
from .ancestry import withdrawn_ancestor

FEW = 16
"""Heads under most names and tags are fewer than this: one statement reads them with their envelopes."""
_MOST_HOLDERS = 4096
"""Revisions of all names that have one key and are looked at, at most."""
SMALL_BYTES = 32 << 10
"""Bytes of an envelope that is read with its head, at most."""


class Place(NamedTuple):
    """The name, tag and lane under which heads are read."""

    namespace: Namespace
    name: ShortName
    tag: Tag
    lane: Lane | None = None


class Slot(NamedTuple):
    """What an entry is for. A lane's entry hides the trunk's in the same slot."""

    tag: Tag
    target: Target
    partition: Digest
    workload: Digest


class StoredPack(NamedTuple):
    """The pack of a revision. ``key``: where it is in the store of packs."""

    digest: Digest
    size: int
    key: str


class BuiltFor(NamedTuple):
    """The environments that a revision fits: a fingerprint and the scopes that count, as JSON texts."""

    fingerprint: str
    scopes: str


class StoredEnvelope(NamedTuple):
    """The envelope of a revision. ``data``: its exact bytes, if they were read with the head; else
    ``Heads.envelopes`` reads them."""

    size: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Candidate(OfferFacts):
    """The head of an entry. ``withheld``: the revision is quarantined in some environment.

    The values were checked when they were written. To check them again for each resolve took longer than to
    read them.
    """

    entry: Digest
    model: Digest | None
    at: PublishedAt
    expires: int | None
    last_used: int | None
    withheld: bool
    slot: Slot
    pack: StoredPack
    built_for: BuiltFor
    envelope: StoredEnvelope


class Group(NamedTuple):
    """Counts the heads of one partition under a place. ``sample``: the revision of one of them. ``unkeyed``:
    heads that no start may omit."""

    partition: Digest
    heads: int
    sample: Digest
    unkeyed: int


class Heads:
    """Reads heads of the trunk, and of ``lane`` if there is one."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def few_under_each(self, places: Sequence[Place], limit: int = FEW) -> list[list[Candidate]]:
        """Returns the newest heads under each place, newest first, at most ``limit``, with their small
        envelopes."""
        rows: dict[Place, list[Any]] = {}
        for statement, in_lane in ((_FEW_OF_TRUNK, False), (_FEW_HEADS, True)):
            alike = [place for place in dict.fromkeys(places) if (place.lane is not None) == in_lane]
            values = [{**_parameters(place), "limit": limit} for place in alike]
            rows.update(zip(alike, fetch_each_on_driver(self._connection, statement, values), strict=True))
        return [[_candidate(row) for row in rows[place]] for place in places]

    def newest(self, place: Place, limit: int) -> list[Candidate]:
        """Returns the newest heads under a place, newest first, without envelopes."""
        return self._fetch(_HEADS, {**_parameters(place), "limit": limit})

    def groups(self, place: Place, limit: int) -> list[Group]:
        """Counts the trunk's heads under a place by their partition, the largest group first. Reads one index
        and no row."""
        values = {**_parameters(place), "limit": limit}
        [rows] = fetch_each_on_driver(self._connection, _GROUPS, [values])
        return [Group(*row) for row in rows]

    def samples(self, place: Place, groups: Sequence[Group]) -> list[Candidate]:
        """Returns one head of each group, without envelopes."""
        values = [{**_parameters(place), "revision": group.sample} for group in groups]
        rows_of_each = fetch_each_on_driver(self._connection, _SAMPLE, values)
        return [_candidate(row) for rows in rows_of_each for row in rows]

    def of_partition(self, place: Place, partition: Digest, limit: int) -> list[Candidate]:
        """Returns heads of one partition, newest first, without envelopes."""
        return self._fetch(_OF_PARTITION, {**_parameters(place), "partition": partition, "limit": limit})

    def of_model(self, place: Place, model: Digest, limit: int) -> list[Candidate]:
        """Returns heads of one model, newest first, without envelopes."""
        return self._fetch(_OF_MODEL, {**_parameters(place), "model": model, "limit": limit})

    def with_keys(self, place: Place, keys: Sequence[str], limit: int) -> list[Candidate]:
        """Returns heads that have one of the keys of compiled graphs, newest first and each once, without
        envelopes; at most ``limit`` for each key."""
        values = [{**_parameters(place), "key": key, "limit": limit} for key in keys]
        rows_of_each = fetch_each_on_driver(self._connection, _WITH_KEY, values)
        heads = [_candidate(row) for rows in rows_of_each for row in rows]
        return list({head.entry: head for head in heads}.values())

    def _fetch(self, statement: sa.Executable, values: dict[str, Any]) -> list[Candidate]:
        [rows] = fetch_each_on_driver(self._connection, statement, [values])
        return [_candidate(row) for row in rows]

    def by_key(
        self, namespace: Namespace, name: ShortName, entries: Sequence[Digest], lane: Lane | None
    ) -> list[Candidate]:
        """Returns the heads of those entries that belong to the name, without envelopes."""
        parameters = {"namespace": namespace, "name": name, "lane": lane or "", "entries": entries}
        return [_candidate(row) for row in self._connection.execute(_HEADS_BY_KEY, parameters)]

    def may_wait(self, entries: Iterable[Digest]) -> frozenset[Digest]:
        """Returns the entries whose heads a start may do without until a compile needs one of their
        keys."""
        rows = self._connection.execute(_MAY_WAIT, {"entries": sorted(entries)})
        return frozenset(Digest(entry) for (entry,) in rows)

    def envelopes(self, revisions: Sequence[Digest]) -> dict[Digest, bytes]:
        """Returns the exact bytes of the envelopes that exist."""
        rows = self._connection.execute(_ENVELOPES, {"revisions": revisions})
        return {Digest(revision): bytes(envelope) for revision, envelope in rows}


def _candidate(row: Sequence[Any]) -> Candidate:
    """Return the head of a row of `_heads`."""
    values: list[Any] = [*row[:12], PublishedAt(*row[12:14]), *row[14:17]]
    values += [Slot(*row[17:21]), StoredPack(*row[21:24]), BuiltFor(*row[24:26]), StoredEnvelope(*row[26:])]
    return Candidate(*values)


def _parameters(place: Place) -> dict[str, Any]:
    return {
        "namespace": place.namespace,
        "name": place.name,
        "tag": place.tag,
        "lane": place.lane or "",
    }


def _heads(*more: Any) -> sa.Select[Any]:
    """Selects the candidates under a name; columns in the order of `_candidate`."""
    entries, revisions = EntryRow.__table__.c, RevisionRow.__table__.c  # type: ignore[attr-defined]
    withheld = sa.exists().where(
        col(UsefulnessRow.revision) == entries.head, col(UsefulnessRow.quarantined).is_not(None)
    )
    require = (
        sa.select(col(NamespaceRow.require))
        .where(col(NamespaceRow.namespace) == sa.bindparam("namespace"))
        .scalar_subquery()
    )
    return (
        sa.select(
            *(entries[name] for name in ("head", "lane")),
            *(revisions[name] for name in ("quarantined", "quarantine_why", "builder", "source_ref")),
            require.label("require"),
            signer_removed(revisions.signer, entries.namespace).label("signer_removed"),
            revoked_why(revisions.signer, entries.namespace).label("revoked_why"),
            withdrawn_ancestor(entries.head, entries.namespace).label("withdrawn_ancestor"),
            *(entries[name] for name in ("entry", "model", "published", "head_sequence")),
            *(revisions[name] for name in ("expires", "last_used")),
            withheld.label("withheld"),
            *(entries[name] for name in Slot._fields),
            *(revisions[name] for name in ("pack", "pack_size", "pack_key")),
            *(sa.cast(revisions[name], sa.Text) for name in BuiltFor._fields),
            _ENVELOPE_BYTES,
            *more,
        )
        .join_from(EntryRow, RevisionRow, revisions.revision == entries.head)
        .where(
            entries.namespace == sa.bindparam("namespace"),
            entries.name == sa.bindparam("name"),
            entries.lane.in_([sa.literal_column("''"), sa.bindparam("lane")]),
        )
        .order_by(entries.published.desc(), entries.head_sequence.desc(), entries.entry)
    )


def _of_tag(heads: sa.Select[Any]) -> sa.Select[Any]:
    return heads.where(col(EntryRow.tag) == sa.bindparam("tag")).limit(sa.bindparam("limit"))


def _trunk() -> tuple[sa.ColumnElement[bool], ...]:
    """Returns the conditions of the trunk's entries under a place."""
    named = [
        col(column) == sa.bindparam(name)
        for name, column in (
            ("namespace", EntryRow.namespace),
            ("name", EntryRow.name),
            ("tag", EntryRow.tag),
        )
    ]
    return (*named, col(EntryRow.lane) == sa.literal_column("''"), col(EntryRow.head).is_not(None))


_ENVELOPE_BYTES = sa.func.length(col(RevisionRow.envelope)).label("envelope_bytes")
_NEWEST = (
    sa.select(col(EntryRow.entry))
    .where(*_trunk())
    .order_by(col(EntryRow.published).desc())
    .limit(sa.bindparam("limit"))
    .subquery("newest")
)
"""The entries of the trunk's newest heads, from one index: under a name with many, only these rows are
read."""
_HEADS = _of_tag(_heads())
_FEW_HEADS = _of_tag(_heads(sa.case((_ENVELOPE_BYTES <= SMALL_BYTES, col(RevisionRow.envelope)))))
_FEW_OF_TRUNK = _heads(sa.case((_ENVELOPE_BYTES <= SMALL_BYTES, col(RevisionRow.envelope)))).join(
    _NEWEST, _NEWEST.c.entry == col(EntryRow.entry)
)
_SAMPLE = _heads().where(col(EntryRow.head) == sa.bindparam("revision"))
_OF_PARTITION = _of_tag(_heads()).where(col(EntryRow.partition) == sa.bindparam("partition"))
_OF_MODEL = _of_tag(_heads()).where(col(EntryRow.model) == sa.bindparam("model"))
_HOLDERS = (
    sa.select(col(GraphKeyRow.revision))
    .where(col(GraphKeyRow.key) == sa.bindparam("key"))
    .limit(_MOST_HOLDERS)
    .subquery("holders")
)
_WITH_KEY = _of_tag(_heads()).join(_HOLDERS, _HOLDERS.c.revision == col(EntryRow.head))
_GROUPS = (
    sa.select(
        col(EntryRow.partition),
        sa.func.count(),
        sa.func.min(col(EntryRow.head)),
        sa.func.sum(sa.case((col(EntryRow.keyed) == col(EntryRow.head), 0), else_=1)),
    )
    .where(*_trunk())
    .group_by(col(EntryRow.partition))
    .order_by(sa.func.count().desc(), col(EntryRow.partition))
    .limit(sa.bindparam("limit"))
)
_HEADS_BY_KEY = _heads().where(col(EntryRow.entry).in_(sa.bindparam("entries", expanding=True)))
_MAY_WAIT = sa.select(col(EntryRow.entry)).where(
    col(EntryRow.entry).in_(sa.bindparam("entries", expanding=True)),
    col(EntryRow.keyed) == col(EntryRow.head),
)
_ENVELOPES = sa.select(col(RevisionRow.revision), col(RevisionRow.envelope)).where(
    col(RevisionRow.revision).in_(sa.bindparam("revisions", expanding=True))
)
