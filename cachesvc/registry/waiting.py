"""Let requests wait for a claim on the event loop, where they occupy no thread and no connection.

One task reads the index for all of them, at once when the hot store wakes it, and else every
``POLL_SECONDS``: without Redis a publication at another replica is seen that much later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from cachesvc.domain.access import Token
from cachesvc.domain.claims import Standing, standing
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.requests.claims import ClaimAnswer, ClaimRequest

from . import claims
from .context import Registry

POLL_SECONDS = 1.0
"""Seconds between two looks into the index."""
WAITERS = 4000
"""Requests of one process that may wait; further ones are answered at once, and their clients ask again."""
WAITERS_PER_TOKEN = 2000
"""Requests of one token that may wait: a fleet that starts at once has one token. Those that were answered at
once asked 500 times a second, which cost more than all the other work of such a start."""
PART_OF_LANE, PART_OF_NAMESPACE = 1 / 4, 5 / 8
"""Parts of all that may wait which are of one lane, and of one namespace with its lanes, at most."""

_log = logging.getLogger("cachesvc.claims")


class Waiting:
    """The requests that wait, on one event loop. ``run`` must be under way: without it none is woken
    early."""

    def __init__(
        self, registry: Registry, waiters: int = WAITERS, per_token: int = WAITERS_PER_TOKEN
    ) -> None:
        self._registry, self._most, self._per_token = registry, waiters, per_token
        self._waiters: dict[Digest, set[_Waiter]] = {}
        self._waiting: Counter[tuple[str, ...]] = Counter()
        """How many wait, by token, by lane and by namespace."""
        self.number = 0
        """How many requests wait now."""
        self._look = asyncio.Event()
        self._closed = False

    async def claim(
        self,
        token: Token,
        request: ClaimRequest,
        disconnected: Callable[[], Awaitable[bool]],
        *,
        on_wait: Callable[[], None] = lambda: None,
    ) -> ClaimAnswer:
        """Takes a claim by `claims.take`; while another has it, again at each change, for at most
        ``request.wait`` seconds.

        ``disconnected``: says whether the client has gone away; nothing is taken for it then. ``on_wait``:
        called before the request waits. ``published`` takes nothing: all who waited search for the revision,
        and none waits for the others.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + request.wait
        with self._wait(token, request.subject.key) as waiter:
            while True:
                answer = await asyncio.to_thread(claims.take, self._registry, token, request)
                if answer.state != "held" or waiter is None or self._closed:
                    return answer
                on_wait()
                event, fence = await waiter.next_event(until - loop.time())
                if event == "published" and fence != request.seen:
                    return ClaimAnswer("published", answer.key, fence)
                if event is None or await disconnected():
                    return answer

    async def run(self) -> None:
        """Reads the index for the requests that wait, until it is cancelled."""
        loop = asyncio.get_running_loop()
        stop = self._registry.hot.listen(lambda key: self._wake(loop, key))
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._look.wait(), POLL_SECONDS)
                self._look.clear()
                if self._waiters:
                    await self._notify()
        finally:
            stop()

    def close(self) -> None:
        """Ends every wait: the process is about to end."""
        self._closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.notify(None)

    @contextmanager
    def _wait(self, token: Token, key: Digest) -> Iterator[_Waiter | None]:
        bounds = self._bounds(token)
        if self.number >= self._most or any(self._waiting[one] >= most for one, most in bounds.items()):
            yield None
            return
        waiter = _Waiter()
        self._waiters.setdefault(key, set()).add(waiter)
        self._count(bounds, 1)
        try:
            yield waiter
        finally:
            self._count(bounds, -1)
            self._waiters[key].discard(waiter)
            if not self._waiters[key]:
                del self._waiters[key]

    def _bounds(self, token: Token) -> dict[tuple[str, ...], float]:
        """Returns how many may wait of those with a token, and of its namespace and lane."""
        bounds: dict[tuple[str, ...], float] = {("token", token.token): self._per_token}
        bounds["namespace", token.namespace] = self._most * PART_OF_NAMESPACE
        if token.lane:
            bounds["lane", token.namespace, token.lane] = self._most * PART_OF_LANE
        return bounds

    def _count(self, bounds: Iterable[tuple[str, ...]], number: int) -> None:
        self.number += number
        for one in bounds:
            self._waiting[one] += number
            if not self._waiting[one]:
                del self._waiting[one]

    def _wake(self, loop: asyncio.AbstractEventLoop, key: str | None) -> None:
        """Makes ``run`` look at once; called in a thread of the hot store, whose hint says no more than
        that."""
        if key is None or (key.startswith(claims.TOPIC) and key[len(claims.TOPIC) :] in self._waiters):
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._look.set)

    async def _notify(self) -> None:
        keys = list(self._waiters)
        try:
            states = await asyncio.to_thread(self._states, keys)
        except CacheSvcError as error:
            _log.debug("the claims cannot be read for the requests that wait: %s", error)
            return
        for key, (state, fence) in states.items():
            if state != "held":
                for waiter in self._waiters.get(key, ()):
                    waiter.notify(state, fence)

    def _states(self, keys: list[Digest]) -> dict[Digest, tuple[Standing, int]]:
        with self._registry.index.read() as unit:
            rows = unit.claims.states(keys)
        claims_of_keys = ((key, *rows.get(key, (None, 0))) for key in keys)
        return {
            key: (standing(claim, now), claim.fence if claim else 0) for key, claim, now in claims_of_keys
        }


class _Waiter:
    """One request that waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._last: tuple[Standing | None, int] = (None, 0)

    def notify(self, state: Standing | None, fence: int = 0) -> None:
        self._last = state, fence
        self._event.set()

    async def next_event(self, seconds: float) -> tuple[Standing | None, int]:
        """Waits for at most ``seconds`` and returns (state, fence); (``None``, 0) if nothing happened."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), max(0.0, seconds))
            self._event.clear()
            return self._last
        return None, 0
