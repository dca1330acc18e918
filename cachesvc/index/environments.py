"""Store the facts of environments that reported a start."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from cachesvc.domain.usefulness import NAMESPACE_ENVIRONMENTS
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.names import Namespace

from .sql import run_change, upsert
from .tables import EnvironmentRow

SEEN_STEP_SECONDS = 3600
"""Seconds between two records of an environment: not every start writes one."""


class Environments:
    """The facts of environments, ``NAMESPACE_ENVIRONMENTS`` of each namespace at most."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(
        self, namespace: Namespace, environment: Digest, fingerprint: dict[str, FactorValue], now: int
    ) -> None:
        """Records the facts of an environment, unless it was recorded less than an hour ago."""
        connection = self._session.connection()
        seen = sa.select(col(EnvironmentRow.seen)).where(*_this(namespace, environment))
        before: Any = connection.execute(seen).scalar()
        if before is not None and before >= now - SEEN_STEP_SECONDS:
            return
        if before is None:
            self._make_room(namespace)
        table: Any = EnvironmentRow.__table__  # type: ignore[attr-defined]
        facts = {"fingerprint": fingerprint, "seen": now}
        statement = upsert(table, connection.dialect.name).values(
            namespace=namespace, environment=environment, **facts
        )
        connection.execute(
            statement.on_conflict_do_update(index_elements=["namespace", "environment"], set_=facts)
        )

    def get(self, namespace: Namespace, environment: Digest) -> dict[str, FactorValue] | None:
        """Returns the facts of an environment as a service there last reported them, if they are stored."""
        query = select(EnvironmentRow.fingerprint).where(*_this(namespace, environment))
        return self._session.exec(query).first()

    def forget(self, before: int) -> int:
        """Deletes the environments that were not seen since ``before``; returns how many."""
        return run_change(self._session, sa.delete(EnvironmentRow).where(col(EnvironmentRow.seen) < before))

    def _make_room(self, namespace: Namespace) -> None:
        of_namespace = col(EnvironmentRow.namespace) == namespace
        count = sa.select(sa.func.count()).select_from(EnvironmentRow).where(of_namespace)
        if (self._session.connection().execute(count).scalar() or 0) < NAMESPACE_ENVIRONMENTS:
            return
        oldest = (
            sa.select(col(EnvironmentRow.environment))
            .where(of_namespace)
            .order_by(col(EnvironmentRow.seen), col(EnvironmentRow.environment))
            .limit(1)
        )
        gone = sa.delete(EnvironmentRow).where(of_namespace, col(EnvironmentRow.environment).in_(oldest))
        run_change(self._session, gone)


def _this(namespace: Namespace, environment: Digest) -> tuple[Any, Any]:
    return col(EnvironmentRow.namespace) == namespace, col(EnvironmentRow.environment) == environment
