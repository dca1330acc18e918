"""Whether the registry can do its work now."""

from __future__ import annotations

from collections.abc import Callable

from cachesvc_client.wire.errors import CacheSvcError

from .context import Registry

NEEDED = ("index", "blobs")
"""Parts without which requests fail. Without the rest they are slower."""


def readiness(registry: Registry) -> dict[str, str]:
    """``ok`` or the cause, for each part that the registry stands on."""
    parts = {"index": registry.index.check, "blobs": registry.blobs.check, "hot": registry.hot.check}
    return {name: _state(check) for name, check in parts.items()}


def ready(parts: dict[str, str]) -> bool:
    """Whether requests can be sent here, by what :func:`readiness` answers."""
    return all(parts[name] == "ok" for name in NEEDED)


def _state(check: Callable[[], None]) -> str:
    try:
        check()
    except CacheSvcError as error:
        return str(error)
    return "ok"
