"""Say whether the registry can serve requests now."""

from __future__ import annotations

from collections.abc import Callable

from cachesvc_client.wire.errors import CacheSvcError, StorageFull

from .context import Registry

NEEDED = ("index", "blobs")
"""Parts without which requests fail. Without the rest they are slower."""


def readiness(registry: Registry) -> tuple[bool, bool, dict[str, str]]:
    """Return (whether requests can be sent here, whether it accepts publications, ``ok`` or the cause for
    each backend).

    A full store is reported, and the registry stays ready: it still serves what the store has.
    """
    checks = {"index": registry.index.check, "blobs": _check_of_packs(registry), "hot": registry.hot.check}
    failures = {name: _failure(check) for name, check in checks.items()}
    ready = all(failures[name] is None or isinstance(failures[name], StorageFull) for name in NEEDED)
    writable = all(failures[name] is None for name in NEEDED)
    return ready, writable, {name: "ok" if error is None else str(error) for name, error in failures.items()}


def _check_of_packs(registry: Registry) -> Callable[[], None]:
    def check() -> None:
        registry.packs.reserve.demand()
        registry.packs.blobs.check()

    return check


def _failure(check: Callable[[], None]) -> CacheSvcError | None:
    try:
        check()
    except CacheSvcError as error:
        return error
    return None
