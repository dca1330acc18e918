"""Select entries and revisions as operators see them, and make their records."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.schema.entries import EntryRecord, RevisionRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

from ..access.signers import revoked_why
from ..tables import EntryRow, RevisionRow
from .ancestry import withdrawn_ancestor


def place_columns() -> list[Any]:
    columns = (EntryRow.namespace, EntryRow.name, EntryRow.tag, EntryRow.target)
    return [col(RevisionRow.revision), *map(col, columns)]


def heads() -> Any:
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


def entry_record(row: Any) -> EntryRecord:
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


def revisions(facts: bool = True) -> Any:
    left_out = {"envelope"} if facts else {"envelope", "fingerprint", "measured", "scopes"}
    named = (EntryRow.namespace, EntryRow.name, EntryRow.tag, EntryRow.target, EntryRow.lane, EntryRow.head)
    columns = [c for c in RevisionRow.__table__.c if c.name not in left_out]  # type: ignore[attr-defined]
    why = revoked_why(col(RevisionRow.signer), col(EntryRow.namespace)).label("signer_revoked")
    made_with = withdrawn_ancestor(col(RevisionRow.revision), col(EntryRow.namespace))
    more = (why, made_with.label("withdrawn_ancestor"))
    return sa.select(*columns, *map(col, named), *more).join_from(
        RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry)
    )


def revision_record(row: Any) -> RevisionRecord:
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
