"""Share the memory and the threads of this process among bodies and answers.

Who waits is served in turn, and where too many wait, those of the namespace that has most of them are sent
away: who fills the line keeps no one else out of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cachesvc.domain.access import Token
from cachesvc_client.wire.errors import TooMany

WAIT_SECONDS = 60.0
"""Seconds that a request waits for its share, at most."""
WAITING = 256
"""Requests that wait for their share in one pool, at most: each may have 128 KiB of its body in buffers
meanwhile."""
TOKEN_WAITING = 64
"""Those of one token."""
FLEET_WAITING = 4000
"""Those that wait for an answer which a whole fleet asks for at once."""

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
    amount: int
    number: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Shares:
    """What is held of one kind in this process. Only the event loop's thread may call it.

    ``waiting``: requests that wait, at most; ``of_token``: those of one token.
    """

    def __init__(self, bounds: Bounds, waiting: int = WAITING, of_token: int = TOKEN_WAITING) -> None:
        self._bounds, self._most_waiting, self._most_of_token = bounds, waiting, of_token
        self._held: Counter[Key] = Counter()
        self._lines: dict[Owner, deque[_Waiter]] = {}
        """Who waits, of each owner the first one first."""
        self._waiters: Counter[Key] = Counter()
        """How many wait, by what bounds them."""
        self._number = 0
        """How many have waited, or were served after they had waited."""
        self._served: dict[str, int] = {}
        """Of each namespace with requests that wait, the number when one was served last."""

    @classmethod
    def of_fleet(cls, bounds: Bounds) -> Shares:
        """Return shares for which a whole fleet may wait, which starts at once and has one token."""
        return cls(bounds, FLEET_WAITING, FLEET_WAITING // 2)

    @asynccontextmanager
    async def hold(self, owner: Owner, amount: int) -> AsyncIterator[None]:
        """Hold ``amount`` for the length of the block, once every bound has room. Raise ``TooMany``."""
        if not self.try_hold(owner, amount):
            await self._wait(owner, amount)
        try:
            yield
        finally:
            self.release(owner, amount)

    def try_hold(self, owner: Owner, amount: int) -> bool:
        """Reserve ``amount`` until ``release``, if every bound has room now and no one waits before it."""
        if self._waiters["token", owner.token] or self._full(owner, amount) is not None:
            return False
        self._add(owner, amount)
        return True

    def release(self, owner: Owner, amount: int) -> None:
        """Return ``amount`` to the others."""
        self._add(owner, -amount)
        self._serve()

    def presses(self, owner: Owner) -> bool:
        """Say whether someone waits for what ``owner`` holds, and has not used up a share of their own."""
        bounds = {key for key, _ in self._bounds.of(owner)}
        return any(
            key in bounds and key[0] in ("namespace", "process")
            for other, line in self._lines.items()
            if (key := self._full(other, line[0].amount)) is not None
        )

    async def _wait(self, owner: Owner, amount: int) -> None:
        self._make_room(owner)
        self._number += 1
        waiter = _Waiter(amount, self._number)
        self._lines.setdefault(owner, deque()).append(waiter)
        self._count(owner, 1)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await waiter.turn
        except BaseException as error:
            if waiter in self._lines.get(owner, ()):
                self._leave(owner, waiter)
            elif not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._add(owner, -amount)  # its turn came in the same moment
            self._serve()
            if isinstance(error, TimeoutError):
                raise TooMany("others took all the time", "try again in some seconds") from None
            raise

    def _make_room(self, owner: Owner) -> None:
        """Make room in the line for one of ``owner``, by sending one away of those who have more there. Raise
        ``TooMany``."""
        too_many = TooMany("too many bodies at once", "try again in some seconds")
        if self._waiters["token", owner.token] >= self._most_of_token:
            raise too_many
        if self._waiters["process",] < self._most_waiting:
            return
        crowded = max(self._lines, key=self._crowd)
        if self._crowd(crowded) <= self._crowd(owner):
            raise too_many
        waiter = self._lines[crowded][-1]
        self._leave(crowded, waiter)
        waiter.turn.set_exception(too_many)

    def _crowd(self, owner: Owner) -> tuple[int, ...]:
        """Return how many wait in the namespace of an owner, in its lane, and with its token."""
        return tuple(self._waiters[key] for key in reversed(_lines_of(owner)))

    def _leave(self, owner: Owner, waiter: _Waiter) -> None:
        self._lines[owner].remove(waiter)
        if not self._lines[owner]:
            del self._lines[owner]
        self._count(owner, -1)

    def _count(self, owner: Owner, number: int) -> None:
        for key in (*_lines_of(owner), ("process",)):
            self._waiters[key] += number
            if not self._waiters[key]:
                del self._waiters[key]

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
        """Serve first those whose namespace has least, and was served longest ago."""
        for owner in sorted(self._lines, key=self._turn_of):
            line = self._lines[owner]
            while line and self._full(owner, line[0].amount) is None:
                waiter = line[0]
                self._leave(owner, waiter)
                if not waiter.turn.done():
                    self._add(owner, waiter.amount)
                    self._number += 1
                    self._served[owner.namespace] = self._number
                    waiter.turn.set_result(None)
        for namespace in [one for one in self._served if not self._waiters["namespace", one]]:
            del self._served[namespace]

    def _turn_of(self, owner: Owner) -> tuple[int, int, int]:
        place = owner.namespace
        return self._held["namespace", place], self._served.get(place, 0), self._lines[owner][0].number


def _lines_of(owner: Owner) -> tuple[Key, Key, Key]:
    return ("token", owner.token), ("lane", owner.namespace, owner.lane or ""), ("namespace", owner.namespace)
