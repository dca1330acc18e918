"""Retention and the collection of what nobody needs. Safe to kill anywhere, beside publishing and reading.

The order is: mark ``deleting`` → commit → delete the object → delete the row. A crash in between leaves a
marked row, which the next run takes up.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.domain.retention import DAY, collectable, expired
from cachesvc.domain.usefulness import KEPT_DAYS

from .context import Registry

_log = logging.getLogger("cachesvc.gc")
_BATCH = 200


@dataclass(frozen=True, slots=True)
class Collected:
    """Counts of one run."""

    revisions: int
    uploads: int
    objects: int


def collect(registry: Registry, by: Token | None = None) -> Collected:
    """One run. ``by=None``: the server itself."""
    if by is not None:
        demand(by, Action.admin, ANY)
    revisions = _expire(registry)
    with registry.index.write() as unit:
        uploads = unit.uploads.drop_over(registry.now)
        unit.usefulness.forget(registry.now - KEPT_DAYS * DAY)
    collected = Collected(revisions, uploads, _sweep(registry))
    if any((collected.revisions, collected.uploads, collected.objects)):
        _log.info(
            "collected %d revisions, %d uploads, %d objects",
            collected.revisions,
            collected.uploads,
            collected.objects,
        )
    return collected


def _expire(registry: Registry) -> int:
    """Forgets revisions that retention lets go; their objects live on for the grace."""
    policy = registry.limits.retention
    with registry.index.read() as unit:
        gone = expired(unit.entries.crowded(policy.revisions), policy, registry.clock())
    for row in gone:
        with registry.index.write() as unit:
            key = unit.entries.remove(row.revision)
            if key is not None:
                unit.objects.lease(key, registry.now + registry.limits.grace_seconds)
    return len(gone)


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
