"""Apply retention, and delete what nobody needs. A kill at any moment is safe, and so are concurrent
requests.

What a policy does not keep is deleted from the index, one transaction each; its objects stay for the grace
period. Then objects (`sweep`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.domain.claims import KEPT_SECONDS
from cachesvc.domain.retention import DAY, Retention, RevisionAge, evicted, expired, unused
from cachesvc.domain.usefulness import DAILY_DAYS, KEPT_DAYS, NODE_DAYS
from cachesvc.index.unit import Unit
from cachesvc_client.wire.admin import CollectPlan, Removal
from cachesvc_client.wire.names import Namespace

from . import audit
from .answers import forget_answers
from .context import Registry
from .inventory import describe, index_graph_keys
from .sweep import sweep

_log = logging.getLogger("cachesvc.gc")
SHOWN = 1000
"""Removals that a plan names; it counts all of them."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Counts of one run. ``entries``: those deleted whole; their revisions are among ``revisions``."""

    revisions: int
    uploads: int
    objects: int
    entries: int = 0


@dataclass(frozen=True, slots=True)
class _Removable:
    """A revision that a policy does not keep; ``whole``: nor its entry."""

    row: RevisionAge
    why: str
    whole: bool = False


def collect(registry: Registry, by: Token | None = None) -> Collected:
    """Runs retention and collection, by what holds now, whatever a plan said. ``by=None``: the server
    itself."""
    if by is not None:
        demand(by, Action.admin, ANY)
    revisions, entries = _retain(registry)
    with registry.index.write() as unit:
        uploads = unit.uploads.drop_over(registry.now)
        unit.claims.forget(KEPT_SECONDS)
        unit.sessions.forget(registry.now)
        unit.usefulness.forget(registry.now - KEPT_DAYS * DAY)
        unit.environments.forget(registry.now - KEPT_DAYS * DAY)
        unit.days.forget(registry.now // DAY - DAILY_DAYS)
        unit.nodes.forget(registry.now - NODE_DAYS * DAY)
        unit.audit.forget(registry.now - audit.KEPT_DAYS * DAY)
    collected = Collected(revisions, uploads, sweep(registry), entries)
    if by is not None:
        with registry.index.write() as unit:
            counts = {name: getattr(collected, name) for name in Collected.__dataclass_fields__}
            audit.note(registry, unit, by, "gc.run", ANY, "", **counts)
    if any((collected.revisions, collected.uploads, collected.objects)):
        _log.info(
            "collected %d revisions (%d whole entries), %d uploads, %d objects",
            collected.revisions,
            collected.entries,
            collected.uploads,
            collected.objects,
        )
    describe(registry)
    index_graph_keys(registry)
    return collected


def plan(registry: Registry, by: Token) -> CollectPlan:
    """Returns what a run would remove now, and why; changes nothing. Objects are those that are free already:
    objects of the removals follow after their grace period."""
    demand(by, Action.admin, ANY)
    removals: list[Removal] = []
    count = total = 0
    with registry.index.read() as unit:
        for namespace in unit.namespaces.names():
            for removable in _removable(registry, unit, namespace):
                count += 1
                total += removable.row.size
                if len(removals) < SHOWN:
                    removals += _shown(unit, removable)
        objects = unit.objects.count_loose(registry.now)
    return CollectPlan(tuple(removals), count, total, objects)


def _retain(registry: Registry) -> tuple[int, int]:
    """Deletes what the policies do not keep, and returns (revisions, entries)."""
    with registry.index.read() as unit:
        namespaces = unit.namespaces.names()
    revisions = entries = 0
    for namespace in namespaces:
        with registry.index.read() as unit:
            removable = list(_removable(registry, unit, namespace))
        counts = [_delete(registry, one) for one in removable]
        revisions += sum(counts)
        entries += sum(bool(count) and one.whole for count, one in zip(counts, removable, strict=True))
        if any(count and one.whole for count, one in zip(counts, removable, strict=True)):
            forget_answers(registry, namespace)
    return revisions, entries


def _removable(registry: Registry, unit: Unit, namespace: Namespace) -> Iterator[_Removable]:
    """Yields what to delete, in order: single revisions first, then whole entries."""
    policy, now = registry.limits.retention.of(unit.namespaces.policy(namespace)), registry.clock()
    old = expired(unit.entries.with_more_than(policy.revisions, namespace), policy, now)
    yield from (
        _Removable(row, f"more than {policy.revisions} revisions, older than {policy.days} days")
        for row in old
    )
    listed = {row.revision for row in old}
    if (fewest := policy.fewest_days_unused) is not None:
        idle = unused(unit.entries.idle(int(now - fewest * DAY), namespace), policy, now)
        yield from (
            _Removable(row, f"not used for {policy.days_unused(row.lane)} days", whole=True) for row in idle
        )
        entries = {row.entry for row in idle}
        listed |= {row.revision for row in idle}
    else:
        entries = set()
    if policy.keep_bytes is not None:
        left = [
            row
            for row in unit.entries.ages(namespace)
            if row.revision not in listed and row.entry not in entries
        ]
        yield from _evicted(left, policy, now)


def _evicted(rows: list[RevisionAge], policy: Retention, now: float) -> Iterator[_Removable]:
    for row in evicted(rows, policy, now):
        idle = int((now - row.touched) / DAY)
        why = f"over {policy.keep_bytes} bytes; idle {idle} days, {row.compile_seconds:.0f} s to compile"
        yield _Removable(row, why, whole=row.is_head)


def _delete(registry: Registry, removable: _Removable) -> int:
    """Deletes a revision or its entry and returns how many revisions: none if it is pinned or a head by
    now."""
    with registry.index.write() as unit:
        if removable.whole:
            keys = unit.entries.remove_whole(removable.row.entry, removable.row.revision) or []
        else:
            key = unit.entries.remove(removable.row.revision)
            keys = [] if key is None else [key]
        for key in keys:
            unit.objects.lease(key, registry.now + registry.limits.grace_seconds)
    return len(keys)


def _shown(unit: Unit, removable: _Removable) -> list[Removal]:
    row = unit.inventory.revision(removable.row.revision)
    if row is None:
        return []
    place = (row.namespace, row.name, row.tag, row.target)
    return [Removal(row.entry, row.revision, *place, row.pack_size, removable.why, removable.whole)]
