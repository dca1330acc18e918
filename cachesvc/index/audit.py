"""Store what operators did."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.domain.access import ANY
from cachesvc.schema.access import AuditRecord

from .sql import Rows, may_delete
from .tables import AuditRow


class Audit(Rows):
    """The audit log. Its rows are never changed, and deleted after years."""

    def add(self, at: int, by: str, action: str, namespace: str, subject: str, **details: object) -> None:
        """Adds a row in the transaction of the action: both are committed, or neither."""
        texts = {name: str(value)[:300] for name, value in details.items() if value is not None}
        self._session.add(
            AuditRow(
                at=at,
                by=by[:40],
                action=action,
                namespace=namespace,
                subject=subject[:200],
                details=texts,
            )
        )

    def page(
        self, namespace: str, before: int | None, limit: int, action: str | None, subject: str | None
    ) -> list[AuditRecord]:
        """Returns the newest rows of one namespace (of ``*``: all) with an id below ``before``, newest
        first."""
        query = select(AuditRow).order_by(col(AuditRow.id).desc()).limit(limit)
        conditions: list[Any] = []
        if namespace != ANY:
            conditions.append(col(AuditRow.namespace) == namespace)
        if before is not None:
            conditions.append(col(AuditRow.id) < before)
        if action:
            conditions.append(col(AuditRow.action).startswith(action, autoescape=True))
        if subject:
            conditions.append(col(AuditRow.subject).contains(subject, autoescape=True))
        return [
            AuditRecord(row.id or 0, row.at, row.by, row.action, row.namespace, row.subject, row.details)
            for row in self._session.exec(query.where(*conditions))
        ]

    def forget(self, before: int) -> int:
        """Delete the rows that are older than ``before``, and return how many; none, where this role of
        PostgreSQL may delete no line."""
        if not may_delete(self._session, str(AuditRow.__tablename__)):
            return 0
        return self._change(sa.delete(AuditRow).where(col(AuditRow.at) < before))
