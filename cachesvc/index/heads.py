"""Read the heads under a name, with what decides whether a resolve answers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import col

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

from .signers import revoked_why, signer_removed
from .sql import fetch_each_on_driver
from .tables import EntryRow, NamespaceRow, RevisionRow, UsefulnessRow

FEW = 16
"""Heads under most names and tags are fewer than this: one statement reads them with their envelopes."""
SMALL_BYTES = 32 << 10
"""Bytes of an envelope that is read with its head, at most."""


class Place(NamedTuple):
    """The name, tag and lane under which heads are read."""

    namespace: Namespace
    name: ShortName
    tag: Tag
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """The head of an entry.

    ``envelope``: its exact bytes, ``envelope_bytes`` of them, if they were read with the head; else
    ``Heads.envelopes`` reads them. ``fingerprint`` and ``scopes``: JSON, as it was stored. ``lane``: empty
    for the trunk. ``withheld``: the revision is quarantined in some environment. ``signer_removed``: the
    namespace accepts the signer's key no more. ``revoked_why``: the reason for which the key was revoked
    there, perhaps an empty one; ``None`` if it was not. ``require``: what the namespace requires of builders.

    The values were checked when they were written. To check them again for each resolve took longer than to
    read them.
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
    builder: str | None
    source_ref: str | None
    require: str | None
    envelope_bytes: int
    withheld: bool
    signer_removed: bool
    revoked_why: str | None
    envelope: bytes | None = None


class Heads:
    """Reads heads of the trunk, and of ``lane`` if there is one."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def under_each(self, places: Sequence[Place], limit: int) -> list[list[Candidate]]:
        """Returns the newest heads under each place, newest first; fewer than ``FEW`` with their small
        envelopes."""
        few = min(limit, FEW)
        rows_of_each = fetch_each_on_driver(
            self._connection, _FEW_HEADS, [{**_parameters(place), "limit": few} for place in places]
        )
        for number, rows in enumerate(rows_of_each):
            if len(rows) == few < limit:
                [rows_of_each[number]] = fetch_each_on_driver(
                    self._connection, _HEADS, [{**_parameters(places[number]), "limit": limit}]
                )
        return [[Candidate(*row) for row in rows] for rows in rows_of_each]

    def by_key(
        self, namespace: Namespace, name: ShortName, entries: Sequence[Digest], lane: Lane | None
    ) -> list[Candidate]:
        """Returns the heads of those entries that belong to the name, without envelopes."""
        parameters = {"namespace": namespace, "name": name, "lane": lane or "", "entries": entries}
        return [Candidate(*row) for row in self._connection.execute(_HEADS_BY_KEY, parameters)]

    def envelopes(self, revisions: Sequence[Digest]) -> dict[Digest, bytes]:
        """Returns the exact bytes of the envelopes that exist."""
        rows = self._connection.execute(_ENVELOPES, {"revisions": revisions})
        return {Digest(revision): bytes(envelope) for revision, envelope in rows}


def _parameters(place: Place) -> dict[str, Any]:
    return {
        "namespace": place.namespace,
        "name": place.name,
        "tag": place.tag,
        "lane": place.lane or "",
    }


def _heads(*more: Any) -> sa.Select[Any]:
    """Selects the candidates under a name; columns in the order of :class:`Candidate`'s fields."""
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
            *(entries[name] for name in ("entry", "lane", "tag", "target", "partition", "workload", "model")),
            *(entries[name] for name in ("head", "published")),
            *(revisions[name] for name in ("pack", "pack_size", "pack_key", "expires")),
            *(sa.cast(revisions[name], sa.Text) for name in ("fingerprint", "scopes")),
            *(revisions[name] for name in ("last_used", "quarantined", "quarantine_why")),
            *(revisions[name] for name in ("builder", "source_ref")),
            require.label("require"),
            _ENVELOPE_BYTES,
            withheld.label("withheld"),
            signer_removed(revisions.signer, entries.namespace).label("signer_removed"),
            revoked_why(revisions.signer, entries.namespace).label("revoked_why"),
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
