"""List what is withheld."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.access import ANY
from cachesvc.schema.entries import Withheld
from cachesvc_client.wire.compare import ancestor_withdrawn
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Namespace, ShortName, Tag, Target

from ..sql import Rows
from ..tables import AncestorRow, EntryRow, RevisionRow, UsefulnessRow, WithdrawalRow
from .ancestry import withdrawn_ancestor, withdrawn_since
from .records import place_columns


class WithheldRevisions(Rows):
    """Lists what is withheld from everybody or from some environments."""

    def listing(self, namespace: str, limit: int) -> list[Withheld]:
        """Returns what is withheld from everybody or from some environments, the newest first."""
        by_operators = sa.select(
            *place_columns(), col(RevisionRow.quarantined), col(RevisionRow.quarantine_why), sa.null()
        ).join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
        by_operators = by_operators.where(col(RevisionRow.quarantined).is_not(None))
        by_reports = (
            sa.select(
                *place_columns(),
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
            for row in self._run(query.limit(limit)):
                place = (Namespace(row[1]), ShortName(row[2]), Tag(row[3]), Target(row[4]))
                environment = Digest(row[7]) if row[7] else None
                withheld.append(Withheld(Digest(row[0]), *place, row[5], words(row[6] or ""), environment))
        return sorted(withheld, key=lambda row: (-row.since, row.revision))[:limit]


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
        sa.select(*place_columns(), since, ancestor.label("why"), sa.null())
        .join_from(reached, RevisionRow, col(RevisionRow.revision) == reached.c.revision)
        .join(EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
    )
    return found.where(ancestor.is_not(None), col(RevisionRow.quarantined).is_(None))
