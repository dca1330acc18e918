"""Store the outcomes of starts, by revision and environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.domain.usefulness import ENVIRONMENTS, HOSTS_PER_TOKEN, InertHost, count_hosts
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target
from cachesvc_client.wire.requests.protocol import EnvironmentUse
from cachesvc_client.wire.requests.reports import STATES

from ..entries.records import record_of
from ..sql import Rows, insert_unless_there, upsert, within
from ..tables import EntryRow, InertHostRow, RevisionRow, UsefulnessRow

SHOWN = 8
"""Environments of one revision that a listing shows; those seen last come first."""
KEPT_HOSTS = 16
"""Inert hosts that are stored for one revision and environment."""
_BATCH = 500
"""Revisions in one statement."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A revision that a report may be about, and where it belongs. ``measured``: seconds by name, as its
    publisher states them. ``last_used``: when its last use was recorded."""

    namespace: Namespace
    lane: Lane | None
    fingerprint: dict[str, FactorValue]
    scopes: tuple[str, ...]
    measured: dict[str, float]
    last_used: int | None = None


@dataclass(frozen=True, slots=True)
class NamedRevision:
    """A revision, and the entry that it belongs to."""

    entry: Digest
    revision: Digest
    namespace: Namespace
    name: ShortName
    tag: Tag
    target: Target
    lane: Lane | None


@dataclass(frozen=True, slots=True)
class InertPlace:
    """An environment whose hosts report a revision inert since its last hit there. ``since``: when the first
    of its ``hosts`` did. ``why``: what differed there in the last such start. ``withheld``: whether the
    revision is not offered there any more."""

    of: NamedRevision
    facts: dict[str, str]
    hosts: int
    since: int
    why: str
    withheld: bool
    environment: Digest


@dataclass(frozen=True, slots=True)
class UsedEntry:
    """An environment whose starts used an entry. ``starts``: number of them."""

    entry: Digest
    environment: Digest
    facts: dict[str, str]
    starts: int
    last_seen: int


@dataclass(frozen=True, slots=True)
class Earlier:
    """The counts of an earlier report of the same start."""

    state: str
    saved: float
    spent: float


@dataclass(frozen=True, slots=True)
class Start:
    """The outcome of a start with one revision, or of ``times`` starts, whose ``saved`` and ``spent`` are
    sums. ``earlier``: the last report of a single start, which is subtracted."""

    revision: Digest
    environment: Digest
    facts: dict[str, str]
    state: str
    saved: float
    spent: float
    why: str
    now: int
    earlier: Earlier | None = None
    times: int = 1


class Usefulness(Rows):
    """Counts by (revision, environment); bounded in every direction."""

    def subjects(self, revisions: Sequence[Digest]) -> dict[Digest, Reported]:
        """Returns the revisions that exist; no one deletes them before this transaction ends."""
        query = (
            sa.select(
                col(RevisionRow.revision),
                col(EntryRow.namespace),
                col(EntryRow.lane),
                col(RevisionRow.fingerprint),
                col(RevisionRow.scopes),
                col(RevisionRow.measured),
                col(RevisionRow.last_used),
            )
            .join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .where(col(RevisionRow.revision).in_(revisions))
            .with_for_update(read=True, key_share=True, of=RevisionRow)
        )
        return {
            Digest(row.revision): Reported(
                Namespace(row.namespace),
                Lane(row.lane) if row.lane else None,
                row.fingerprint,
                tuple(row.scopes),
                row.measured,
                row.last_used,
            )
            for row in self._run(query)
        }

    def add(self, start: Start) -> None:
        """Counts starts, a single one in the place of its earlier report, if it has one. A revision with the
        full number of environments loses the one that was seen longest ago."""
        self._make_room(start.revision, start.environment)
        table: Any = UsefulnessRow.__table__  # type: ignore[attr-defined]
        row = UsefulnessRow(
            revision=start.revision,
            environment=start.environment,
            facts=start.facts,
            saved=start.saved,
            spent=start.spent,
            first_seen=start.now,
            last_seen=start.now,
            why=start.why,
            **{start.state: start.times},
        )
        statement = upsert(self._session, UsefulnessRow).values(row.model_dump())
        added = {name: table.c[name] + statement.excluded[name] for name in (*STATES, "saved", "spent")}
        if (earlier := start.earlier) is not None:
            # A client may state a false earlier report: no count falls below zero.
            fewer = added[earlier.state] - 1
            added[earlier.state] = sa.case((fewer < 0, 0), else_=fewer)
            added |= {"saved": added["saved"] - earlier.saved, "spent": added["spent"] - earlier.spent}
        replaced = {"facts": start.facts, "last_seen": start.now, **({"why": start.why} if start.why else {})}
        self._run(
            statement.on_conflict_do_update(
                index_elements=["revision", "environment"], set_={**added, **replaced}
            )
        )

    def inert(self, revision: Digest, environment: Digest, host: InertHost, now: int) -> list[InertHost]:
        """Stores the host and returns all stored hosts. Of one token it stores no more than the rule
        counts."""
        hosts = self.hosts(revision, environment)
        of_token = [one for one in hosts if one.token == host.token]
        if host in hosts or len(of_token) >= HOSTS_PER_TOKEN or len(hosts) >= KEPT_HOSTS:
            return hosts
        insert_unless_there(
            self._session,
            InertHostRow,
            revision=revision,
            environment=environment,
            token=host.token,
            node=host.node,
            seen=now,
        )
        return [*hosts, host]

    def hosts(self, revision: Digest, environment: Digest) -> list[InertHost]:
        """Returns the hosts that reported the revision inert since the last hit."""
        query = select(InertHostRow.token, InertHostRow.node).where(
            InertHostRow.revision == revision, InertHostRow.environment == environment
        )
        return [InertHost(token, node) for token, node in self._session.exec(query)]

    def quarantine(self, revision: Digest, environment: Digest, now: int) -> bool:
        """Withholds the revision from the environment; returns whether it was not withheld before."""
        statement = sa.update(UsefulnessRow).where(
            col(UsefulnessRow.revision) == revision,
            col(UsefulnessRow.environment) == environment,
            col(UsefulnessRow.quarantined).is_(None),
        )
        return bool(self._change(statement.values(quarantined=now)))

    def lift(self, revision: Digest, environment: Digest | None = None) -> bool:
        """Offers the revision again, in one environment or in all, and returns whether it was withheld."""
        rows = sa.update(UsefulnessRow).where(
            col(UsefulnessRow.revision) == revision, col(UsefulnessRow.quarantined).is_not(None)
        )
        hosts = sa.delete(InertHostRow).where(col(InertHostRow.revision) == revision)
        if environment is not None:
            rows = rows.where(col(UsefulnessRow.environment) == environment)
            hosts = hosts.where(col(InertHostRow.environment) == environment)
        self._change(hosts)
        return bool(self._change(rows.values(quarantined=None)))

    def quarantined(self, revisions: Sequence[Digest]) -> dict[tuple[Digest, Digest], str]:
        """Returns for each withheld (revision, environment) the reason."""
        query = sa.select(
            col(UsefulnessRow.revision), col(UsefulnessRow.environment), col(UsefulnessRow.why)
        ).where(col(UsefulnessRow.quarantined).is_not(None))
        reasons: dict[tuple[Digest, Digest], str] = {}
        for begin in range(0, len(revisions), _BATCH):
            some = query.where(col(UsefulnessRow.revision).in_(revisions[begin : begin + _BATCH]))
            for revision, environment, why in self._run(some):
                reasons[Digest(revision), Digest(environment)] = why
        return reasons

    def of(self, revisions: Sequence[Digest]) -> dict[Digest, tuple[EnvironmentUse, ...]]:
        """Returns for each revision the ``SHOWN`` environments that were seen last, for listings."""
        uses: dict[Digest, list[EnvironmentUse]] = {}
        for begin in range(0, len(revisions), _BATCH):
            some = revisions[begin : begin + _BATCH]
            hosts = self._all_hosts(some)
            query = select(UsefulnessRow).where(col(UsefulnessRow.revision).in_(some))
            for row in self._session.exec(query.order_by(col(UsefulnessRow.last_seen).desc())):
                of_revision = uses.setdefault(Digest(row.revision), [])
                if len(of_revision) < SHOWN:
                    of_revision.append(_use(row, count_hosts(hosts.get((row.revision, row.environment), []))))
        return {revision: tuple(of_revision) for revision, of_revision in uses.items()}

    def inert_since(self, namespace: str, since: int, limit: int) -> list[InertPlace]:
        """Returns where revisions became inert at ``since`` or later, the newest first; ``*``: in all
        namespaces."""
        first = sa.func.min(col(InertHostRow.seen)).label("since")
        places = (
            sa.select(
                col(InertHostRow.revision),
                col(InertHostRow.environment),
                sa.func.count().label("hosts"),
                first,
            )
            .group_by(col(InertHostRow.revision), col(InertHostRow.environment))
            .having(first >= since)
            .subquery()
        )
        named = (
            EntryRow.entry,
            EntryRow.namespace,
            EntryRow.name,
            EntryRow.tag,
            EntryRow.target,
            EntryRow.lane,
        )
        uses = (UsefulnessRow.revision, UsefulnessRow.facts, UsefulnessRow.why, UsefulnessRow.quarantined)
        query = (
            sa.select(*map(col, named), *map(col, uses), places.c.environment, places.c.hosts, places.c.since)
            .join_from(places, RevisionRow, col(RevisionRow.revision) == places.c.revision)
            .join(EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .join(
                UsefulnessRow,
                sa.and_(
                    col(UsefulnessRow.revision) == places.c.revision,
                    col(UsefulnessRow.environment) == places.c.environment,
                ),
            )
            .order_by(places.c.since.desc(), places.c.revision, places.c.environment)
            .limit(limit)
        )
        query = within(query, col(EntryRow.namespace), namespace)
        return [_inert_place(row) for row in self._run(query)]

    def used_since(self, entries: Sequence[Digest], since: int) -> list[UsedEntry]:
        """Returns where the entries were used at ``since`` (seconds of UTC) or later: starts that compiled
        nothing, or less, for a revision of them."""
        used = UsefulnessRow
        starts = sa.func.sum(col(used.hit) + col(used.partial))
        query = (
            sa.select(
                col(RevisionRow.entry),
                col(used.environment),
                sa.func.max(sa.cast(col(used.facts), sa.Text)),
                starts,
                sa.func.max(col(used.last_seen)),
            )
            .join_from(RevisionRow, used, col(used.revision) == col(RevisionRow.revision))
            .where(col(used.last_seen) >= since)
            .group_by(col(RevisionRow.entry), col(used.environment))
            .having(starts > 0)
        )
        rows: list[UsedEntry] = []
        for begin in range(0, len(entries), _BATCH):
            some = query.where(col(RevisionRow.entry).in_(entries[begin : begin + _BATCH]))
            rows += [
                UsedEntry(Digest(entry), Digest(where), json.loads(facts), int(count), last)
                for entry, where, facts, count, last in self._run(some)
            ]
        return rows

    def forget(self, before: int) -> int:
        """Deletes the environments that were not seen since ``before`` and are not quarantined; returns how
        many."""
        stale = (
            col(UsefulnessRow.last_seen) < before,
            col(UsefulnessRow.quarantined).is_(None),
        )
        hosts = sa.delete(InertHostRow).where(col(InertHostRow.seen) < before)
        self._change(hosts)
        return self._change(sa.delete(UsefulnessRow).where(*stale))

    def _all_hosts(self, revisions: Sequence[Digest]) -> dict[tuple[str, str], list[InertHost]]:
        hosts: dict[tuple[str, str], list[InertHost]] = {}
        for row in self._session.exec(select(InertHostRow).where(col(InertHostRow.revision).in_(revisions))):
            hosts.setdefault((row.revision, row.environment), []).append(InertHost(row.token, row.node))
        return hosts

    def _make_room(self, revision: Digest, environment: Digest) -> None:
        rows = self._run(
            sa.select(col(UsefulnessRow.environment), col(UsefulnessRow.quarantined))
            .where(col(UsefulnessRow.revision) == revision)
            .order_by(col(UsefulnessRow.last_seen), col(UsefulnessRow.environment))
        )
        known = [(row.environment, row.quarantined) for row in rows]
        if len(known) < ENVIRONMENTS or environment in {there for there, _ in known}:
            return
        for there, quarantined in known:
            if quarantined is None or there == known[-1][0]:
                for table in (InertHostRow, UsefulnessRow):
                    oldest = sa.delete(table).where(
                        col(table.revision) == revision, col(table.environment) == there
                    )
                    self._change(oldest)
                return


def _inert_place(row: Any) -> InertPlace:
    return InertPlace(
        of=record_of(NamedRevision, row),
        facts=row.facts,
        hosts=row.hosts,
        since=row.since,
        why=row.why,
        withheld=row.quarantined is not None,
        environment=Digest(row.environment),
    )


def _use(row: UsefulnessRow, inert_hosts: int) -> EnvironmentUse:
    return EnvironmentUse(
        environment=Digest(row.environment),
        facts=row.facts,
        hit=row.hit,
        partial=row.partial,
        inert=row.inert,
        miss=row.miss,
        unused=row.unused,
        saved=round(row.saved, 3),
        spent=round(row.spent, 3),
        first_seen=row.first_seen,
        last_seen=row.last_seen,
        inert_hosts=inert_hosts,
        quarantined=row.quarantined,
        why=row.why,
    )
