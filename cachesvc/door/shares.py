"""Share what bodies take of this process, memory or threads, by token, lane, namespace and process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cachesvc.domain.access import Token
from cachesvc_client.wire.errors import TooMany

WAIT_SECONDS = 60.0
"""Seconds that a request waits for its share, at most."""
WAITING = 256
"""Requests that wait for their share in one pool, at most: each may have 128 KiB in buffers meanwhile."""
TOKEN_WAITING = 64
"""Those of one token."""

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose body it is. ``token``: the token's id; of a request without one, the client's address."""

    token: str
    namespace: str = ""
    lane: str | None = None

    @classmethod
    def of(cls, token: Token) -> Owner:
        """Return the owner of a request that names no namespace before its body."""
        return cls(token.token, token.namespace, token.lane)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be held at once by a token, by a lane, by all lanes of a namespace together (the rest is
    the trunk's), by a namespace, and in all."""

    token: int
    lane: int
    lanes: int
    namespace: int
    process: int

    def of(self, owner: Owner) -> Iterator[tuple[Key, int]]:
        """Yield what bounds ``owner``, the narrowest first."""
        yield ("token", owner.token), self.token
        if owner.lane is not None:
            yield ("lane", owner.namespace, owner.lane), self.lane
            yield ("lanes", owner.namespace), self.lanes
        yield ("namespace", owner.namespace), self.namespace
        yield ("process",), self.process


@dataclass(eq=False, slots=True)
class _Waiter:
    owner: Owner
    amount: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Shares:
    """What is held of one kind in this process. Only the event loop's thread may call it."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._held: Counter[Key] = Counter()
        self._waiting: dict[_Waiter, None] = {}

    @asynccontextmanager
    async def hold(self, owner: Owner, amount: int, *, waits: bool = True) -> AsyncIterator[None]:
        """Hold ``amount`` for the length of the block, once every bound has room. Raise ``TooMany``, at once
        if it does not wait."""
        if self._full(owner, amount) is None and not self._waiters_of(owner):
            self._add(owner, amount)
        elif not waits:
            raise TooMany("too many large answers at once", "try again in some seconds")
        else:
            await self._wait(owner, amount)
        try:
            yield
        finally:
            self._add(owner, -amount)
            self._serve()

    def presses(self, owner: Owner) -> bool:
        """Say whether someone waits for what ``owner`` holds, and has not used up a share of their own."""
        bounds = {key for key, _ in self._bounds.of(owner)}
        return any(
            key in bounds and key[0] in ("namespace", "process")
            for waiter in self._waiting
            if (key := self._full(waiter.owner, waiter.amount)) is not None
        )

    async def _wait(self, owner: Owner, amount: int) -> None:
        if len(self._waiting) >= WAITING or self._waiters_of(owner) >= TOKEN_WAITING:
            raise TooMany("too many bodies at once", "try again in some seconds")
        waiter = _Waiter(owner, amount)
        self._waiting[waiter] = None
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await waiter.turn
        except BaseException as error:
            if waiter not in self._waiting:  # its turn came in the same moment
                self._add(owner, -amount)
            self._waiting.pop(waiter, None)
            self._serve()
            if isinstance(error, TimeoutError):
                raise TooMany("other bodies took all the time", "try again in some seconds") from None
            raise

    def _waiters_of(self, owner: Owner) -> int:
        return sum(waiter.owner.token == owner.token for waiter in self._waiting)

    def _full(self, owner: Owner, amount: int) -> Key | None:
        """Return the narrowest bound that has no room."""
        bounds = self._bounds.of(owner)
        return next((key for key, most in bounds if self._held[key] + amount > most), None)

    def _add(self, owner: Owner, amount: int) -> None:
        for key, _ in self._bounds.of(owner):
            self._held[key] += amount
            if not self._held[key]:
                del self._held[key]

    def _serve(self) -> None:
        """Give what is free to those who have waited longest."""
        for waiter in list(self._waiting):
            if not waiter.turn.done() and self._full(waiter.owner, waiter.amount) is None:
                self._add(waiter.owner, waiter.amount)
                del self._waiting[waiter]
                waiter.turn.set_result(None)
