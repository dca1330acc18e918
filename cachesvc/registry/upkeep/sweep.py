"""Delete the objects that no one needs. A kill at any moment is safe, and so are concurrent requests.

Mark ``deleting`` → commit → delete the object → delete the row. A crash in between leaves a marked row, which
the next run goes on with.
"""

from __future__ import annotations

from cachesvc.domain.retention import collectable

from ..context import Registry

_BATCH = 200
"""Objects that are read from the index together."""


def sweep(registry: Registry, share: str | None = None) -> int:
    """Deletes the objects that no revision names and whose lease is over, and returns how many. ``share``:
    only those that are pending bytes of this share (`quota`)."""
    done = 0
    while True:
        with registry.index.read() as unit:
            loose = unit.objects.loose(registry.now, _BATCH, share)
        taken = [facts.key for facts in loose if collectable(facts, registry.clock())]
        removed = sum(_remove(registry, key) for key in taken)
        done += removed
        if len(loose) < _BATCH or not removed:
            return done


def _remove(registry: Registry, key: str) -> bool:
    with registry.index.write() as unit:
        if not unit.objects.mark(key, registry.now):
            return False
    registry.packs.blobs.delete(key)
    with registry.index.write() as unit:
        unit.objects.forget(key)
    return True
