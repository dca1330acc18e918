"""Store the facts of environments that reported a start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.domain.usefulness import NAMESPACE_ENVIRONMENTS
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.names import Lane, Name, Namespace
from cachesvc_client.wire.requests.reports import STATES

from ..sql import Rows, upsert
from ..tables import EntryRow, EnvironmentRow, RevisionRow, UsefulnessRow

SEEN_STEP_SECONDS = 3600
"""Seconds between two records of an environment: not every start writes one."""


@dataclass(frozen=True, slots=True)
class ReportedEnvironment:
    """An environment that reported starts with entries of a name. ``facts``: those by which people recognise
    it. ``states``: its starts by outcome. ``stored``: whether all of its facts are stored. ``saved`` and
    ``spent``: seconds that its starts saved, and that they compiled."""

    environment: Digest
    facts: dict[str, str]
    states: dict[str, int]
    last_seen: int
    stored: bool
    saved: float = 0.0
    spent: float = 0.0


class Environments(Rows):
    """The facts of environments, ``NAMESPACE_ENVIRONMENTS`` of each namespace at most."""

    def add(
        self, namespace: Namespace, environment: Digest, fingerprint: dict[str, FactorValue], now: int
    ) -> None:
        """Records the facts of an environment, unless it was recorded less than an hour ago."""
        seen = sa.select(col(EnvironmentRow.seen)).where(*_this(namespace, environment))
        before: Any = self._run(seen).scalar()
        if before is not None and before >= now - SEEN_STEP_SECONDS:
            return
        if before is None:
            self._make_room(namespace)
        facts = {"fingerprint": fingerprint, "seen": now}
        statement = upsert(self._session, EnvironmentRow)
        statement = statement.values(namespace=namespace, environment=environment, **facts)
        self._run(statement.on_conflict_do_update(index_elements=["namespace", "environment"], set_=facts))

    def get(self, namespace: Namespace, environment: Digest) -> dict[str, FactorValue] | None:
        """Returns the facts of an environment as a service there last reported them, if they are stored."""
        query = select(EnvironmentRow.fingerprint).where(*_this(namespace, environment))
        fingerprint = self._session.exec(query).first()
        return None if fingerprint is None else dict(fingerprint)

    def get_each(
        self, namespace: Namespace, environments: Sequence[Digest]
    ) -> dict[Digest, dict[str, FactorValue]]:
        """Returns the facts of each environment whose facts are stored, of some hundreds at most."""
        query = select(EnvironmentRow.environment, EnvironmentRow.fingerprint).where(
            EnvironmentRow.namespace == namespace, col(EnvironmentRow.environment).in_(environments)
        )
        return {Digest(where): dict(facts) for where, facts in self._session.exec(query)}

    def reported(
        self, name: Name, lane: Lane | None, environment: Digest | None = None, *, limit: int
    ) -> list[ReportedEnvironment]:
        """Returns the environments that reported starts with revisions of ``name``, of the trunk and of
        ``lane``, the last seen first; or the one ``environment``, if it did."""
        used = UsefulnessRow
        counts = [sa.func.sum(col(getattr(used, one))) for one in ("saved", "spent", *STATES)]
        seen = sa.func.max(col(used.last_seen))
        query = (
            sa.select(
                col(used.environment),
                sa.func.max(sa.cast(col(used.facts), sa.Text)),
                seen,
                sa.func.max(col(EnvironmentRow.seen)),
                *counts,
            )
            .join_from(EntryRow, RevisionRow, col(RevisionRow.entry) == col(EntryRow.entry))
            .join(used, col(used.revision) == col(RevisionRow.revision))
            .outerjoin(EnvironmentRow, sa.and_(*_this(name.namespace, col(used.environment))))
            .where(
                col(EntryRow.namespace) == name.namespace,
                col(EntryRow.name) == name.name,
                col(EntryRow.tag) == name.tag,
                col(EntryRow.lane).in_(["", *([lane] if lane else [])]),
            )
            .group_by(col(used.environment))
            .order_by(seen.desc(), col(used.environment))
            .limit(limit)
        )
        if environment is not None:
            query = query.where(col(used.environment) == environment)
        return [
            ReportedEnvironment(
                Digest(where),
                json.loads(facts),
                dict(zip(STATES, map(int, of_states), strict=True)),
                last,
                stored is not None,
                float(saved),
                float(spent),
            )
            for where, facts, last, stored, saved, spent, *of_states in self._run(query)
        ]

    def forget(self, before: int) -> int:
        """Deletes the environments that were not seen since ``before``; returns how many."""
        return self._change(sa.delete(EnvironmentRow).where(col(EnvironmentRow.seen) < before))

    def _make_room(self, namespace: Namespace) -> None:
        of_namespace = col(EnvironmentRow.namespace) == namespace
        count = sa.select(sa.func.count()).select_from(EnvironmentRow).where(of_namespace)
        if (self._run(count).scalar() or 0) < NAMESPACE_ENVIRONMENTS:
            return
        oldest = (
            sa.select(col(EnvironmentRow.environment))
            .where(of_namespace)
            .order_by(col(EnvironmentRow.seen), col(EnvironmentRow.environment))
            .limit(1)
        )
        gone = sa.delete(EnvironmentRow).where(of_namespace, col(EnvironmentRow.environment).in_(oldest))
        self._change(gone)


def _this(namespace: Namespace, environment: Any) -> tuple[Any, Any]:
    return col(EnvironmentRow.namespace) == namespace, col(EnvironmentRow.environment) == environment
