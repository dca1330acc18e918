"""Define what a hot store guarantees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

MAX_SECONDS = 5.0
"""Seconds that a hint lives, at most. Within them revocation and quarantine reach every replica
(docs/architecture.md, what must hold always)."""


MAX_HOLD_SECONDS = 300.0
"""Seconds that one who has a key is known, at most. Of them nothing depends but time: no right, and nothing
that a revocation ends."""
MAX_HOLDERS = 32
"""Number of those who have one key, at most."""

OnWake = Callable[[str | None], None]
"""Callback that gets the key of each wake-up, in a thread of the store. ``None``: wake-ups may be lost."""


class Hot(Protocol):
    """Hints by key, and wake-ups. Safe for use from several threads.

    The store may forget a value at any time, and forgets it after its seconds. What ``get`` returns was put
    under this key and is whole. Only ``check`` raises: a store that is down has no hints.
    """

    def get(self, key: str) -> bytes | None:
        """Returns the value of ``key``; ``None`` if the store has none."""
        ...

    def peek(self, key: str) -> bytes | None:
        """Returns what ``get`` returns, without waiting, so that an event loop may call it. ``b""``: the
        store has no value. ``None``: only ``get`` can tell."""
        ...

    def put(self, key: str, value: bytes, seconds: float = MAX_SECONDS) -> None:
        """Stores ``value`` for at most ``seconds``, which is cut to ``MAX_SECONDS``."""
        ...

    def drop(self, key: str) -> None:
        """Removes the value of ``key``, for every process that shares the store."""
        ...

    def count(self, key: str, seconds: float = MAX_SECONDS) -> int:
        """Counts a call for ``key`` and returns the count, for rate limits.

        The first call begins a span of ``seconds``, after which the count begins anew. No call is lost among
        threads or replicas; while the store is down, the count is 0.
        """
        ...

    def hold(self, key: str, holder: str, value: bytes, seconds: float) -> None:
        """Records that ``holder`` holds ``key``, with a value, for at most ``seconds``, which is cut to
        ``MAX_HOLD_SECONDS``. A holder has a key once. Of more than ``MAX_HOLDERS`` some are forgotten."""
        ...

    def holders(self, key: str) -> dict[str, bytes]:
        """Returns who holds ``key`` now, with their values, at most ``MAX_HOLDERS``."""
        ...

    def release(self, key: str, holder: str) -> None:
        """Forgets that ``holder`` holds ``key``; no other one's is forgotten."""
        ...

    def wake(self, key: str) -> None:
        """Calls every listener, in all processes that share the store. A wake-up may be lost."""
        ...

    def listen(self, on_wake: OnWake) -> Callable[[], None]:
        """Calls ``on_wake`` for each key that is woken from soon on; returns the function that ends this.

        ``on_wake`` must not block. While the store is down it gets nothing, and ``None`` afterwards.
        """
        ...

    def check(self) -> None:
        """Raises ``Unavailable`` with the cause if the store is down."""
        ...

    def close(self) -> None:
        """Closes connections and ends listening."""
        ...
