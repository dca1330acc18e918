"""What a hot store guarantees."""

from __future__ import annotations

from typing import Protocol

MAX_SECONDS = 5.0
"""No hint lives longer: so revocation and quarantine reach every replica within it (DESIGN, invariant 10)."""


class Hot(Protocol):
    """Hints by key. A value that was put may be forgotten at any time, and is after its seconds; what
    ``get`` answers was put under this key and is whole. Never raises: a store that is down knows nothing.
    """

    def get(self, key: str) -> bytes | None:
        """What was put, while it lives."""
        ...

    def put(self, key: str, value: bytes, seconds: float = MAX_SECONDS) -> None:
        """Remembers ``value`` for at most ``seconds``, which is cut to ``MAX_SECONDS``."""
        ...

    def drop(self, key: str) -> None:
        """Forgets it, for everybody who shares the store."""
        ...
