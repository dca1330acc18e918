"""Complete names at the tab key: ask the registry for a second at most, and say nothing of what fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ..wire.errors import CacheSvcError

SECONDS = 1.0
"""How long completion waits for the registry."""


def registry_names() -> list[str]:
    """Return the names that the token may read, as ``namespace/name``; none where that takes too long or
    fails."""
    return within(_names)


def within(ask: Callable[[], Iterable[str]]) -> list[str]:
    """Return what ``ask`` returns, or nothing if it fails or takes longer than ``SECONDS``."""
    answer: list[str] = []

    def run() -> None:
        try:
            answer.extend(ask())
        except (CacheSvcError, OSError, ValueError):
            answer.clear()

    # No timeout of a request bounds all of them together.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return [] if thread.is_alive() else answer


def _names() -> list[str]:
    from ..config import Config
    from ..http.registry import Remote
    from .matching import all_names

    config = Config.read()
    if config.url is None:
        return []
    with Remote(config.url, config.token, timeout=SECONDS, connect_timeout=SECONDS, retries=0) as remote:
        return [f"{row.namespace}/{row.name}" for row in all_names(remote)]
