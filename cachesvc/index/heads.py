"""The heads under a name, with what decides whether they are answered: what every resolve asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.access import ANY
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

from .sql import driven_each
from .tables import EntryRow, RevisionRow, SignerRow, UsefulnessRow

FEW = 16
"""Heads under most names and tags are fewer: they are asked for with their envelopes, by one statement."""
SMALL_BYTES = 32 << 10
"""Of an envelope that comes with its head."""


class Place(NamedTuple):
    """What heads are asked for by."""

    namespace: Namespace
    name: ShortName
    tag: Tag
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """The head of an entry. ``envelope``: its exact bytes, of which there are ``envelope_bytes``, where they
    came along; else ``Heads.envelopes`` has them. ``fingerprint`` and ``scopes``: JSON, as it was stored.
    ``lane``: empty for the trunk.
    ``withheld``: it is quarantined in an environment, this one or another. ``signer_removed``: no signature
    of its key is accepted for the namespace any more.

    All are as they were checked when they were written: to check them again for each resolve took longer than
    to find them.
    """

    entry: Digest
    lane: str
    tag: Tag
    target: Target
    partition: Digest
    workload: Digest
    model: Digest | None
    revision: Digest
    published: int
    pack: Digest
    pack_size: int
    pack_key: str
    expires: int | None
    fingerprint: str
    scopes: str
    last_used: int | None
    quarantined: int | None
    quarantine_why: str | None
    envelope_bytes: int
    withheld: bool
    signer_removed: bool
    envelope: bytes | None = None


class Heads:
    """Of a block that only looks. What is asked for is the trunk's, and that of ``lane`` if there is one."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def under_each(self, places: Sequence[Place], limit: int) -> list[list[Candidate]]:
        """The newest heads under each, newest first; of fewer than ``FEW`` the small envelopes."""
        few = min(limit, FEW)
        found = self._fetched(_FEW_HEADS, [{**_asked(place), "limit": few} for place in places])
        for number, rows in enumerate(found):
            if len(rows) == few < limit:
                [found[number]] = self._fetched(_HEADS, [{**_asked(places[number]), "limit": limit}])
        return [[Candidate(*row) for row in rows] for rows in found]

    def by_key(
        self, namespace: Namespace, name: ShortName, entries: Sequence[Digest], lane: Lane | None
    ) -> list[Candidate]:
        """The heads of these entries, as far as they belong to the name; without envelopes."""
        asked = {"namespace": namespace, "name": name, "lane": lane or "", "entries": entries}
        return [Candidate(*row) for row in self._connection.execute(_HEADS_BY_KEY, asked)]

    def envelopes(self, revisions: Sequence[Digest]) -> dict[Digest, bytes]:
        """The envelopes' exact bytes, of those that exist."""
        rows = self._connection.execute(_ENVELOPES, {"revisions": revisions})
        return {Digest(revision): bytes(envelope) for revision, envelope in rows}

    def _fetched(self, statement: sa.Select[Any], asked: list[dict[str, Any]]) -> list[list[Any]]:
        return [cursor.fetchall() for cursor in driven_each(self._connection, statement, asked)]


def _asked(place: Place) -> dict[str, Any]:
    return {
        "namespace": place.namespace,
        "name": place.name,
        "tag": place.tag,
        "lane": place.lane or "",
    }


def _heads(*more: Any) -> sa.Select[Any]:
    """Candidates under a name; columns in the order of :class:`Candidate`'s fields."""
    entries, revisions = EntryRow.__table__.c, RevisionRow.__table__.c  # type: ignore[attr-defined]
    withheld = sa.exists().where(
        col(UsefulnessRow.revision) == entries.head, col(UsefulnessRow.quarantined).is_not(None)
    )
    accepted = sa.exists().where(
        col(SignerRow.key) == revisions.signer,
        col(SignerRow.namespace).in_([entries.namespace, sa.literal_column(f"'{ANY}'")]),
    )
    return (
        sa.select(
            *(entries[name] for name in ("entry", "lane", "tag", "target", "partition", "workload", "model")),
            *(entries[name] for name in ("head", "published")),
            *(revisions[name] for name in ("pack", "pack_size", "pack_key", "expires")),
            *(sa.cast(revisions[name], sa.Text) for name in ("fingerprint", "scopes")),
            *(revisions[name] for name in ("last_used", "quarantined", "quarantine_why")),
            _ENVELOPE_BYTES,
            withheld.label("withheld"),
            sa.not_(accepted).label("signer_removed"),
            *more,
        )
        .join_from(EntryRow, RevisionRow, revisions.revision == entries.head)
        .where(
            entries.namespace == sa.bindparam("namespace"),
            entries.name == sa.bindparam("name"),
            entries.lane.in_([sa.literal_column("''"), sa.bindparam("lane")]),
        )
        .order_by(entries.published.desc(), entries.entry)
    )


def _of_tag(heads: sa.Select[Any]) -> sa.Select[Any]:
    return heads.where(col(EntryRow.tag) == sa.bindparam("tag")).limit(sa.bindparam("limit"))


_ENVELOPE_BYTES = sa.func.length(col(RevisionRow.envelope)).label("envelope_bytes")
_HEADS = _of_tag(_heads())
_FEW_HEADS = _of_tag(_heads(sa.case((_ENVELOPE_BYTES <= SMALL_BYTES, col(RevisionRow.envelope)))))
_HEADS_BY_KEY = _heads().where(col(EntryRow.entry).in_(sa.bindparam("entries", expanding=True)))
_ENVELOPES = sa.select(col(RevisionRow.revision), col(RevisionRow.envelope)).where(
    col(RevisionRow.revision).in_(sa.bindparam("revisions", expanding=True))
)
