"""Store which nodes reported a revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.usefulness import NODES
from cachesvc.schema.revocations import SeenNode
from cachesvc_client.wire.digest import Digest

from ..access.signers import signed_by
from ..sql import Rows, insert_unless_there
from ..tables import EntryRow, RevisionNodeRow, RevisionRow, TokenRow

SEEN_STEP_SECONDS = 3600
"""Seconds between two records that a node reported a revision: not every start writes one."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One report of a node about a revision."""

    revision: Digest
    node: str
    token: str
    state: str
    now: int


class RevisionNodes(Rows):
    """The nodes that reported a revision, ``NODES`` of each revision at most."""

    def add(self, reports: Sequence[NodeReport]) -> None:
        """Records reports. Beyond ``NODES`` of a revision a new node is omitted: clients choose their
        digits."""
        for revision in dict.fromkeys(report.revision for report in reports):
            self._add(revision, [each for each in reports if each.revision == revision])

    def _add(self, revision: Digest, reports: Sequence[NodeReport]) -> None:
        """Records reports about one revision. A fleet that starts at once reports it from as many nodes: one
        statement finds those that are known."""
        of_revision = col(RevisionNodeRow.revision) == revision
        connection = self._session.connection()
        query = sa.select(
            col(RevisionNodeRow.node), col(RevisionNodeRow.state), col(RevisionNodeRow.seen)
        ).where(of_revision, col(RevisionNodeRow.node).in_({report.node for report in reports}))
        known: dict[str, tuple[str, int]] = {
            row.node: (row.state, row.seen) for row in connection.execute(query)
        }
        changed = _changes(reports, known)
        new = [report for node, report in changed.items() if node not in known]
        for node, report in changed.items():
            if node in known:
                values = {"state": report.state, "seen": report.now, "token": report.token}
                this = (of_revision, col(RevisionNodeRow.node) == node)
                self._change(sa.update(RevisionNodeRow).where(*this).values(**values))
        if not new:
            return
        count = connection.execute(sa.select(sa.func.count()).where(of_revision)).scalar() or 0
        for report in new[: max(0, NODES - count)]:
            insert_unless_there(
                self._session,
                RevisionNodeRow,
                revision=report.revision,
                node=report.node,
                token=report.token,
                state=report.state,
                seen=report.now,
            )

    def of_signer(self, key: str, namespace: str, since: int, limit: int) -> list[SeenNode]:
        """Returns the nodes that reported what ``key`` signed, since ``since``; the last seen first. A node
        used it if a report says *hit* or *partial*."""
        used = sa.case((col(RevisionNodeRow.state).in_(["hit", "partial"]), 1), else_=0)
        seen = sa.func.max(col(RevisionNodeRow.seen)).label("seen")
        query = (
            sa.select(
                col(RevisionNodeRow.node),
                col(RevisionNodeRow.token),
                sa.func.max(col(TokenRow.label)).label("label"),
                seen,
                sa.func.count().label("revisions"),
                sa.func.max(used).label("used"),
            )
            .join_from(
                RevisionNodeRow, RevisionRow, col(RevisionRow.revision) == col(RevisionNodeRow.revision)
            )
            .join(EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .join(TokenRow, col(TokenRow.token) == col(RevisionNodeRow.token), isouter=True)
            .where(*signed_by(key, namespace), col(RevisionNodeRow.seen) >= since)
            .group_by(col(RevisionNodeRow.node), col(RevisionNodeRow.token))
            .order_by(seen.desc(), col(RevisionNodeRow.node))
            .limit(limit)
        )
        return [
            SeenNode(row.node, row.token, row.label or "", row.seen, row.revisions, bool(row.used))
            for row in self._run(query)
        ]

    def forget(self, before: int) -> int:
        """Deletes the nodes that reported nothing since ``before``; returns how many."""
        return self._change(sa.delete(RevisionNodeRow).where(col(RevisionNodeRow.seen) < before))


def _changes(reports: Sequence[NodeReport], known: Mapping[str, tuple[str, int]]) -> dict[str, NodeReport]:
    """Returns the reports to be written, by node. ``known``: state and time of the nodes that are stored."""
    changes: dict[str, NodeReport] = {}
    for report in reports:
        if (before := changes.get(report.node)) is not None:
            state, seen = before.state, before.now
        else:
            state, seen = known.get(report.node, ("", 0))
        if state != report.state or seen < report.now - SEEN_STEP_SECONDS:
            changes[report.node] = report
    return changes
