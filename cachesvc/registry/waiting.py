"""Those who wait for a claim, in this process: on the event loop, where none holds a thread or a connection.

One task looks into the index for all of them, at once when the hot store tells that something changed, and
else every ``POLL_SECONDS``: without Redis a publication at another replica is seen that much later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from cachesvc.domain.access import Token
from cachesvc.domain.claims import Standing, standing
from cachesvc_client.wire.claims import ClaimAnswer, ClaimRequest
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError

from . import claims
from .context import Registry

POLL_SECONDS = 1.0
WAITERS = 4000
"""Of one process; more are answered at once, and come again."""
WAITERS_PER_TOKEN = 500
"""Less than the requests that a token may have under way: who waits must not keep it from working."""

_log = logging.getLogger("cachesvc.claims")


class Waiting:
    """For one event loop. ``run`` is to be under way: without it nobody is woken, and each waits his time."""

    def __init__(
        self, registry: Registry, waiters: int = WAITERS, per_token: int = WAITERS_PER_TOKEN
    ) -> None:
        self._registry, self._most, self._per_token = registry, waiters, per_token
        self._ears: dict[Digest, set[_Ear]] = {}
        self._tokens: Counter[str] = Counter()
        self._look = asyncio.Event()
        self._closed = False

    @property
    def number(self) -> int:
        """How many wait now."""
        return sum(self._tokens.values())

    async def claim(
        self, token: Token, request: ClaimRequest, gone: Callable[[], Awaitable[bool]]
    ) -> ClaimAnswer:
        """`claims.take`, and while somebody else holds it, again when that changed, for ``request.wait``
        seconds in all. ``gone``: whether the one who asked has gone away: nothing is taken for him then.

        ``published`` takes nothing: all who waited look, and nobody has to wait for the others.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + request.wait
        with self._listening(token, request.subject.key) as ear:
            while True:
                answer = await asyncio.to_thread(claims.take, self._registry, token, request)
                if answer.state != "held" or ear is None or self._closed:
                    return answer
                news, fence = await ear.news(until - loop.time())
                if news == "published" and fence != request.seen:
                    return ClaimAnswer("published", answer.key, fence)
                if news is None or await gone():
                    return answer

    async def run(self) -> None:
        """Looks for those who wait, until it is cancelled."""
        loop = asyncio.get_running_loop()
        stop = self._registry.hot.listen(lambda key: self._heard(loop, key))
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._look.wait(), POLL_SECONDS)
                self._look.clear()
                if self._ears:
                    await self._tell()
        finally:
            stop()

    def close(self) -> None:
        """Nobody waits any longer: the process is about to end."""
        self._closed = True
        for ears in self._ears.values():
            for ear in ears:
                ear.hear(None)

    @contextmanager
    def _listening(self, token: Token, key: Digest) -> Iterator[_Ear | None]:
        if self._tokens[token.token] >= self._per_token or self.number >= self._most:
            yield None
            return
        ear = _Ear()
        self._ears.setdefault(key, set()).add(ear)
        self._tokens[token.token] += 1
        try:
            yield ear
        finally:
            self._tokens[token.token] -= 1
            if not self._tokens[token.token]:
                del self._tokens[token.token]
            self._ears[key].discard(ear)
            if not self._ears[key]:
                del self._ears[key]

    def _heard(self, loop: asyncio.AbstractEventLoop, key: str | None) -> None:
        """In a thread of the hot store's. Another process's word says only that it is time to look."""
        if key is None or (key.startswith(claims.TOPIC) and key[len(claims.TOPIC) :] in self._ears):
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._look.set)

    async def _tell(self) -> None:
        keys = list(self._ears)
        try:
            found = await asyncio.to_thread(self._states, keys)
        except CacheSvcError as error:
            _log.debug("no news for those who wait: %s", error)
            return
        for key, (news, fence) in found.items():
            if news != "held":
                for ear in self._ears.get(key, ()):
                    ear.hear(news, fence)

    def _states(self, keys: list[Digest]) -> dict[Digest, tuple[Standing, int]]:
        with self._registry.index.read() as unit:
            rows = unit.claims.states(keys)
        found = ((key, *rows.get(key, (None, 0))) for key in keys)
        return {key: (standing(claim, now), claim.fence if claim else 0) for key, claim, now in found}


class _Ear:
    """Of one who waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._news: tuple[Standing | None, int] = (None, 0)

    def hear(self, news: Standing | None, fence: int = 0) -> None:
        self._news = news, fence
        self._event.set()

    async def news(self, seconds: float) -> tuple[Standing | None, int]:
        """What is heard within the time, and of which fence; ``None`` if nothing is."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), max(0.0, seconds))
            self._event.clear()
            return self._news
        return None, 0
