"""What a hot store guarantees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

MAX_SECONDS = 5.0
"""No hint lives longer: so revocation and quarantine reach every replica within it
(docs/architecture.md, what must hold always)."""


Heard = Callable[[str | None], None]
"""Takes what was woken, in a thread of the store's. ``None``: something may have been missed."""


class Hot(Protocol):
    """Hints by key, and wake-ups. A value that was put may be forgotten at any time and is after its seconds;
    what ``get`` answers was put under this key and is whole. But for ``check`` nothing raises: a store that
    is down knows nothing. Safe for use from several threads.
    """

    def get(self, key: str) -> bytes | None:
        """What was put, while it lives."""
        ...

    def peek(self, key: str) -> bytes | None:
        """What ``get`` answers, where that is known without waiting for anybody, so that an event loop may
        ask: nothing as ``b""``. ``None``: ask with ``get``."""
        ...

    def put(self, key: str, value: bytes, seconds: float = MAX_SECONDS) -> None:
        """Remembers ``value`` for at most ``seconds``, which is cut to ``MAX_SECONDS``."""
        ...

    def drop(self, key: str) -> None:
        """Forgets it, for everybody who shares the store."""
        ...

    def count(self, key: str, seconds: float = MAX_SECONDS) -> int:
        """How often this was called for ``key``, this call included, in the span of ``seconds`` that its
        first call began: for limits. No call is lost among threads or replicas; 0 while the store is down."""
        ...

    def wake(self, key: str) -> None:
        """Tells everybody who listens now, in all processes that share the store. May be lost."""
        ...

    def listen(self, heard: Heard) -> Callable[[], None]:
        """Has ``heard`` called for each key that is woken from soon on, until the answer is called. It must
        not block. While the store is down nothing is heard; afterwards ``None`` is."""
        ...

    def check(self) -> None:
        """Raises ``Unavailable`` with the cause if the store is down: the one method that tells."""
        ...

    def close(self) -> None:
        """Gives connections back, and ends listening."""
        ...
