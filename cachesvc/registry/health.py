"""Whether the registry can do its work now."""

from __future__ import annotations

from collections.abc import Callable

from cachesvc_client.wire.errors import CacheSvcError, StorageFull

from .context import Registry

NEEDED = ("index", "blobs")
"""Parts without which requests fail. Without the rest they are slower."""


def readiness(registry: Registry) -> tuple[bool, dict[str, str]]:
    """(whether requests can be sent here, ``ok`` or the cause for each part that the registry stands on).

    A store that is full is told, and no reason to send nobody here: what it holds is still answered.
    """
    checks = {"index": registry.index.check, "blobs": registry.blobs.check, "hot": registry.hot.check}
    found = {name: _failure(check) for name, check in checks.items()}
    ready = all(found[name] is None or isinstance(found[name], StorageFull) for name in NEEDED)
    return ready, {name: "ok" if error is None else str(error) for name, error in found.items()}


def _failure(check: Callable[[], None]) -> CacheSvcError | None:
    try:
        check()
    except CacheSvcError as error:
        return error
    return None
