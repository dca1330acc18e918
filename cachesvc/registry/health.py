"""Say whether the registry can serve requests now."""

from __future__ import annotations

from collections.abc import Callable

from cachesvc_client.wire.errors import CacheSvcError, StorageFull

from .context import Registry

NEEDED = ("index", "blobs")
"""Parts without which requests fail. Without the rest they are slower."""


def readiness(registry: Registry) -> tuple[bool, dict[str, str]]:
    """Returns (whether requests can be sent here, ``ok`` or the cause for each backend).

    A full store is reported, and the registry stays ready: it still serves what the store has.
    """
    checks = {"index": registry.index.check, "blobs": registry.packs.blobs.check, "hot": registry.hot.check}
    failures = {name: _failure(check) for name, check in checks.items()}
    ready = all(failures[name] is None or isinstance(failures[name], StorageFull) for name in NEEDED)
    return ready, {name: "ok" if error is None else str(error) for name, error in failures.items()}


def _failure(check: Callable[[], None]) -> CacheSvcError | None:
    try:
        check()
    except CacheSvcError as error:
        return error
    return None
