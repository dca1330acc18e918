"""Select entries and revisions as operators see them, and make their records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.schema.entries import EntryRecord, RevisionRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

from ..access.signers import revoked_why
from ..tables import EntryRow, RevisionRow
from .ancestry import withdrawn_ancestor

_Record = TypeVar("_Record")


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


_NAMES: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("entry", "revision", "pack", "head", "model"), Digest),
    "namespace": Namespace,
    "name": ShortName,
    "tag": Tag,
    "target": Target,
    "lane": Lane,
}
"""The types of columns that name something; an empty one of these names nothing."""


def record_of(record: type[_Record], row: Any, **others: object) -> _Record:
    """Return a record of an entry or a revision: its fields are the columns of a row that have their names,
    and ``others``. The query says which columns a row has, so one that is not for operators is not in it."""
    columns, values = row._mapping, dict(others)
    for field in fields(record):  # type: ignore[arg-type]
        if field.name in columns and field.name not in others:
            value = columns[field.name]
            if (named := _NAMES.get(field.name)) is not None:
                value = named(value) if value else None
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return record(**values)


def entry_record(row: Any) -> EntryRecord:
    dtypes, shapes = (tuple((words or "").split()) for words in (row.dtypes, row.shapes))
    head = {"revision": Digest(row.head), "sequence": row.head_sequence}
    return record_of(EntryRecord, row, **head, dtypes=dtypes, shapes=shapes)


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
    return record_of(RevisionRecord, row, head=row.head == row.revision, why=row.quarantine_why or "")
