"""Whether the registry can do its work now."""

from __future__ import annotations

from collections.abc import Callable

from cachesvc_client.wire.errors import CacheSvcError

from .context import Registry


def readiness(registry: Registry) -> dict[str, str]:
    """``ok`` or the cause, for each part that requests need."""
    return {"index": _state(registry.index.check), "blobs": _state(registry.blobs.check)}


def _state(check: Callable[[], None]) -> str:
    try:
        check()
    except CacheSvcError as error:
        return str(error)
    return "ok"
