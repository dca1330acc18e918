"""Say where the packs of revisions are, and what decides whether they are offered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.offers import OfferFacts
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace

from ..access.signers import revoked_why, signer_removed
from ..sql import Rows
from ..tables import EntryRow, NamespaceRow, RevisionRow
from .ancestry import withdrawn_ancestor
from .listing import LISTED


@dataclass(frozen=True, slots=True)
class PackPlace(OfferFacts):
    """Where a revision's bytes are, and what decides whether it is offered."""

    lane: Lane | None
    namespace: Namespace
    key: str
    digest: Digest
    size: int


class PackPlaces(Rows):
    """Says where packs are."""

    def of_revision(self, revision: Digest) -> PackPlace | None:
        """Returns where the pack of a revision is."""
        row: Any = self._run(_PLACE, {"revision": revision}).first()
        if row is None:
            return None
        return _pack_place(revision, row)

    def of_packs(self, namespace: Namespace, packs: Sequence[Digest]) -> list[PackPlace]:
        """Return where the packs of the trunk of a namespace are that have one of these digests."""
        which = (col(EntryRow.namespace) == namespace, col(EntryRow.lane) == "")
        query = _PLACES.add_columns(col(RevisionRow.revision))
        query = query.where(*which, col(RevisionRow.pack).in_(packs)).limit(LISTED)
        rows: Any = self._run(query)
        return [_pack_place(Digest(revision), row) for *row, revision in rows]


def _pack_place(revision: Digest, row: Any) -> PackPlace:
    lane, *facts, namespace, key, pack, size = row
    values = (Lane(lane) if lane else None, *facts, Namespace(namespace), key, Digest(pack), size)
    return PackPlace(revision, *values)


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
