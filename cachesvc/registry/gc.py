"""Retention and the collection of what nobody needs. Safe to kill anywhere, beside publishing and reading.

What a policy lets go is removed from the index, one transaction each, and its objects live on for the grace.
Then objects: mark ``deleting`` → commit → delete the object → delete the row. A crash in between leaves a
marked row, which the next run takes up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.domain.claims import KEPT_SECONDS
from cachesvc.domain.retention import DAY, Retention, RevisionAge, collectable, evicted, expired, unused
from cachesvc.domain.usefulness import KEPT_DAYS
from cachesvc.index.unit import Unit
from cachesvc_client.wire.admin import CollectPlan, Removal
from cachesvc_client.wire.names import Namespace

from . import audit
from .answers import forget_answers
from .context import Registry
from .inventory import describe

_log = logging.getLogger("cachesvc.gc")
_BATCH = 200
SHOWN = 1000
"""Removals that a plan names; all are counted."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Counts of one run. ``entries``: that went whole; their revisions are among ``revisions``."""

    revisions: int
    uploads: int
    objects: int
    entries: int = 0


@dataclass(frozen=True, slots=True)
class _Doomed:
    """A revision that a policy lets go; ``whole``: with its entry."""

    row: RevisionAge
    why: str
    whole: bool = False


def collect(registry: Registry, by: Token | None = None) -> Collected:
    """One run. ``by=None``: the server itself. Whatever a plan said, it is judged again now."""
    if by is not None:
        demand(by, Action.admin, ANY)
    revisions, entries = _retain(registry)
    with registry.index.write() as unit:
        uploads = unit.uploads.drop_over(registry.now)
        unit.claims.forget(KEPT_SECONDS)
        unit.usefulness.forget(registry.now - KEPT_DAYS * DAY)
        unit.audit.forget(registry.now - audit.KEPT_DAYS * DAY)
    collected = Collected(revisions, uploads, _sweep(registry), entries)
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
    return collected


def plan(registry: Registry, by: Token) -> CollectPlan:
    """What a run would remove now, and why; changes nothing. Objects are those that are free already: what
    the removals free follows when their grace is over."""
    demand(by, Action.admin, ANY)
    removals: list[Removal] = []
    count = total = 0
    with registry.index.read() as unit:
        for namespace in unit.namespaces.names():
            for doomed in _doomed(registry, unit, namespace):
                count += 1
                total += doomed.row.size
                if len(removals) < SHOWN:
                    removals += _shown(unit, doomed)
        objects = unit.objects.count_loose(registry.now)
    return CollectPlan(tuple(removals), count, total, objects)


def _retain(registry: Registry) -> tuple[int, int]:
    """(revisions, entries) that the policies let go."""
    with registry.index.read() as unit:
        namespaces = unit.namespaces.names()
    revisions = entries = 0
    for namespace in namespaces:
        with registry.index.read() as unit:
            doomed = list(_doomed(registry, unit, namespace))
        gone = [_forgotten(registry, one) for one in doomed]
        revisions += sum(gone)
        entries += sum(bool(count) and one.whole for count, one in zip(gone, doomed, strict=True))
        if any(count and one.whole for count, one in zip(gone, doomed, strict=True)):
            forget_answers(registry, namespace)
    return revisions, entries


def _doomed(registry: Registry, unit: Unit, namespace: Namespace) -> Iterator[_Doomed]:
    """In the order in which they go: single revisions first, then whole entries."""
    policy, now = registry.limits.retention.of(unit.namespaces.policy(namespace)), registry.clock()
    old = expired(unit.entries.crowded(policy.revisions, namespace), policy, now)
    yield from (
        _Doomed(row, f"more than {policy.revisions} revisions, older than {policy.days} days") for row in old
    )
    gone = {row.revision for row in old}
    if policy.unused_days is not None:
        idle = unused(unit.entries.idle(int(now - policy.unused_days * DAY), namespace), policy, now)
        yield from (_Doomed(row, f"not used for {policy.unused_days} days", whole=True) for row in idle)
        entries = {row.entry for row in idle}
        gone |= {row.revision for row in idle}
    else:
        entries = set()
    if policy.keep_bytes is not None:
        left = [
            row
            for row in unit.entries.ages(namespace)
            if row.revision not in gone and row.entry not in entries
        ]
        yield from _evicted(left, policy, now)


def _evicted(rows: list[RevisionAge], policy: Retention, now: float) -> Iterator[_Doomed]:
    for row in evicted(rows, policy, now):
        idle = int((now - row.touched) / DAY)
        why = f"over {policy.keep_bytes} bytes; idle {idle} days, {row.compile_seconds:.0f} s to compile"
        yield _Doomed(row, why, whole=row.is_head)


def _forgotten(registry: Registry, doomed: _Doomed) -> int:
    """How many revisions went: none if it is pinned, or is a head, by now."""
    with registry.index.write() as unit:
        if doomed.whole:
            keys = unit.entries.remove_whole(doomed.row.entry, doomed.row.revision) or []
        else:
            key = unit.entries.remove(doomed.row.revision)
            keys = [] if key is None else [key]
        for key in keys:
            unit.objects.lease(key, registry.now + registry.limits.grace_seconds)
    return len(keys)


def _shown(unit: Unit, doomed: _Doomed) -> list[Removal]:
    row = unit.inventory.revision(doomed.row.revision)
    if row is None:
        return []
    place = (row.namespace, row.name, row.tag, row.target)
    return [Removal(row.entry, row.revision, *place, row.pack_size, doomed.why, doomed.whole)]


def _sweep(registry: Registry) -> int:
    done = 0
    while True:
        with registry.index.read() as unit:
            loose = unit.objects.loose(registry.now, _BATCH)
        taken = [facts.key for facts in loose if collectable(facts, registry.clock())]
        removed = sum(_remove(registry, key) for key in taken)
        done += removed
        if len(loose) < _BATCH or not removed:
            return done


def _remove(registry: Registry, key: str) -> bool:
    with registry.index.write() as unit:
        if not unit.objects.mark(key, registry.now):
            return False
    registry.blobs.delete(key)
    with registry.index.write() as unit:
        unit.objects.forget(key)
    return True
