"""Store the starts that were offered nothing, by name and environment, and find what starts compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from cachesvc.domain.access import ANY
from cachesvc.domain.usefulness import COLD_MODELS, NAMESPACE_COLD
from cachesvc.schema.wanted import WantedTarget
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.names import Lane, Name, Namespace, ShortName, Tag, Target

from ..sql import Rows, upsert
from ..tables import ColdStartRow, EntryRow, EnvironmentRow, NamespaceRow, UsefulnessRow


@dataclass(frozen=True, slots=True)
class ColdRecord:
    """The cold starts of one environment with one name. ``spent``: seconds of compiling, together."""

    environment: Digest
    fingerprint: dict[str, FactorValue]
    models: tuple[Digest, ...]
    starts: int
    spent: float
    last_seen: int
    lane: Lane | None = None


class ColdStarts(Rows):
    """Cold starts, of ``NAMESPACE_COLD`` pairs of a name and an environment in each namespace at most."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._table: Any = ColdStartRow.__table__  # type: ignore[attr-defined]

    def add(self, name: Name, start: ColdRecord, spent_before: float | None = None) -> None:
        """Counts one start. ``spent_before``: of an earlier report of the same start, which this one
        replaces: only the seconds change then, and never fall below zero."""
        there = (*self._under(name, [start.lane or ""]), self._table.c.environment == start.environment)
        before: Any = self._run(sa.select(self._table.c.models).where(*there)).scalar()
        if before is None:
            self._make_room(name.namespace)
        models = list(dict.fromkeys([*(before or ()), *map(str, start.models)]))[:COLD_MODELS]
        values = {
            "namespace": name.namespace,
            "name": name.name,
            "tag": name.tag,
            "lane": start.lane or "",
            "environment": start.environment,
            "fingerprint": start.fingerprint,
            "models": models,
            "starts": start.starts,
            "spent": start.spent,
            "first_seen": start.last_seen,
            "last_seen": start.last_seen,
        }
        changed: dict[str, Any] = {"models": models, "fingerprint": start.fingerprint}
        if spent_before is None:
            changed |= {"starts": self._table.c.starts + start.starts, "last_seen": start.last_seen}
            changed["spent"] = self._table.c.spent + start.spent
        else:
            spent = self._table.c.spent + start.spent - spent_before
            changed["spent"] = sa.case((spent < 0, 0.0), else_=spent)
        statement = upsert(self._session, ColdStartRow).values(values)
        key = ["namespace", "name", "tag", "lane", "environment"]
        self._run(statement.on_conflict_do_update(index_elements=key, set_=changed))

    def under(self, name: Name, lane: Lane | None, since: int, limit: int) -> list[ColdRecord]:
        """Returns the environments with cold starts of ``name`` at ``since`` (seconds of UTC) or later, of
        the trunk and of ``lane``; those that compiled longest come first."""
        table = self._table.c
        query = (
            sa.select(
                table.environment,
                table.fingerprint,
                table.models,
                table.starts,
                table.spent,
                table.last_seen,
                table.lane,
            )
            .where(*self._under(name, ["", *([lane] if lane else [])]), table.last_seen >= since)
            .order_by(table.spent.desc(), table.environment, table.lane)
            .limit(limit)
        )
        return [
            ColdRecord(
                Digest(where),
                dict(facts),
                tuple(map(Digest, models)),
                starts,
                spent,
                last,
                Lane(of) if of else None,
            )
            for where, facts, models, starts, spent, last, of in self._run(query)
        ]

    def unknown_namespaces(self) -> set[str]:
        """Return the namespaces that have cold starts, and in which nothing was published."""
        cold, known = self._table.c.namespace, col(NamespaceRow.namespace)
        query = sa.select(cold).distinct().where(cold.not_in(sa.select(known)))
        return set(self._run(query).scalars())

    def names(self, namespace: str, lane: Lane | None, since: int, limit: int) -> list[Name]:
        """Return the names under which starts of the trunk and of ``lane`` compiled at ``since`` or later;
        those that compiled longest come first. ``namespace``: ``*`` for all."""
        cold, lanes = self._table.c, ["", *([lane] if lane else [])]
        used: Any = UsefulnessRow
        # The few rows that compiled come first, by their own index, and then the entries of these.
        compiled = (
            sa.select(col(used.revision), sa.func.sum(col(used.spent)).label("spent"))
            .where(col(used.last_seen) >= since)
            .where(col(used.inert) + col(used.partial) > sa.literal_column("0"))
            .group_by(col(used.revision))
            .subquery()
        )
        nothing_fitted = (
            sa.select(cold.namespace, cold.name, cold.tag, sa.func.sum(cold.spent))
            .where(cold.last_seen >= since, cold.lane.in_(lanes))
            .where(*([] if namespace == ANY else [cold.namespace == namespace]))
            .group_by(cold.namespace, cold.name, cold.tag)
        )
        place = (col(EntryRow.namespace), col(EntryRow.name), col(EntryRow.tag))
        compiled_anyway = (
            sa.select(*place, sa.func.sum(compiled.c.spent))
            .join_from(compiled, EntryRow, compiled.c.revision == col(EntryRow.head))
            .where(col(EntryRow.lane).in_(lanes))
            .where(*([] if namespace == ANY else [col(EntryRow.namespace) == namespace]))
            .group_by(*place)
        )
        sums: dict[tuple[str, str, str], float] = {}
        for query in (nothing_fitted, compiled_anyway):
            # Each in its own order and bounded: what is first of both is first of one.
            bounded = query.order_by(sa.desc(sa.literal_column("4"))).limit(limit)
            for where, name, tag, spent in self._run(bounded):
                sums[where, name, tag] = sums.get((where, name, tag), 0.0) + (spent or 0.0)
        ordered = sorted(sums, key=lambda key: (-sums[key], key))[:limit]
        return [Name(Namespace(where), ShortName(name), Tag(tag)) for where, name, tag in ordered]

    def targets_of(
        self, name: Name, lane: Lane | None, models: Sequence[Digest]
    ) -> dict[Digest, list[Target]]:
        """Returns the targets of ``name`` that entries of any environment have for each of the models."""
        query = (
            sa.select(col(EntryRow.model), col(EntryRow.target))
            .where(*_entries(name, lane), col(EntryRow.model).in_(models))
            .distinct()
            .order_by(col(EntryRow.target))
        )
        targets: dict[Digest, list[Target]] = {}
        for model, target in self._run(query) if models else ():
            targets.setdefault(Digest(model), []).append(Target(target))
        return targets

    def compiled_all_the_same(
        self, name: Name, lane: Lane | None, since: int, limit: int
    ) -> list[WantedTarget]:
        """Returns where the heads of ``name`` were installed at ``since`` or later and starts compiled; those
        that compiled longest come first. ``fingerprint``: empty if it is not stored."""
        used: Any = UsefulnessRow
        of_environment = sa.and_(
            col(EnvironmentRow.namespace) == name.namespace,
            col(EnvironmentRow.environment) == col(used.environment),
        )
        query = (
            sa.select(
                col(EntryRow.entry),
                col(EntryRow.target),
                col(EntryRow.lane),
                col(used.environment),
                col(used.facts),
                col(EnvironmentRow.fingerprint),
                (col(used.inert) + col(used.partial)).label("starts"),
                col(used.spent),
                col(used.last_seen),
                col(used.why),
            )
            .join_from(EntryRow, used, col(used.revision) == col(EntryRow.head))
            .outerjoin(EnvironmentRow, of_environment)
            .where(
                *_entries(name, lane), col(used.last_seen) >= since, col(used.inert) + col(used.partial) > 0
            )
            .order_by(col(used.spent).desc(), col(EntryRow.entry), col(used.environment))
            .limit(limit)
        )
        return [
            WantedTarget(
                *(name.namespace, name.name, name.tag, Digest(row.environment), row.starts),
                target=Target(row.target),
                spent=round(row.spent, 3),
                last_seen=row.last_seen,
                facts=dict(row.facts),
                fingerprint=dict(row.fingerprint or {}),
                lane=Lane(row.lane) if row.lane else None,
                entry=Digest(row.entry),
                why=row.why,
            )
            for row in self._run(query)
        ]

    def forget(self, before: int) -> int:
        """Deletes what was not seen since ``before``; returns how many rows."""
        return self._change(sa.delete(ColdStartRow).where(col(ColdStartRow.last_seen) < before))

    def _under(self, name: Name, lanes: Sequence[str]) -> tuple[Any, ...]:
        table = self._table.c
        place = (table.namespace == name.namespace, table.name == name.name, table.tag == name.tag)
        return (*place, table.lane.in_(lanes))

    def _make_room(self, namespace: str) -> None:
        of_namespace = self._table.c.namespace == namespace
        count = sa.select(sa.func.count()).select_from(self._table).where(of_namespace)
        if (self._run(count).scalar() or 0) < NAMESPACE_COLD:
            return
        key = [self._table.c[name] for name in ("name", "tag", "lane", "environment")]
        oldest = sa.select(*key).where(of_namespace).order_by(self._table.c.last_seen, *key).limit(1)
        row = self._run(oldest).one()
        gone = [column == value for column, value in zip(key, row, strict=True)]
        self._change(sa.delete(ColdStartRow).where(of_namespace, *gone))


def _entries(name: Name, lane: Lane | None) -> tuple[Any, ...]:
    return (
        col(EntryRow.namespace) == name.namespace,
        col(EntryRow.name) == name.name,
        col(EntryRow.tag) == name.tag,
        col(EntryRow.lane).in_(["", *([lane] if lane else [])]),
    )
