"""Share the places for uploads, which occupy threads, among tokens and between lanes and the trunk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from cachesvc.domain.access import Token

PLACES = 32
"""Bodies that a process receives at once; more wait."""
TOKEN_PLACES = 16
"""Bodies of one token that a process receives at once; more of this token wait."""
LANE_PLACES = 16
"""Bodies of all lanes' tokens together that a process receives at once: the others are the trunk's."""


class UploadPlaces:
    """The places of one process, on one event loop. ``threads``: limits the threads that receive."""

    def __init__(self) -> None:
        self.threads = anyio.CapacityLimiter(PLACES)
        self._lanes = anyio.CapacityLimiter(LANE_PLACES)
        self._tokens: dict[str, tuple[anyio.CapacityLimiter, int]] = {}

    @asynccontextmanager
    async def place(self, token: Token) -> AsyncIterator[None]:
        """Waits for a place of the token, and of the lanes if the token is a lane's, for the length of the
        block."""
        limiter, users = self._tokens.get(token.token, (anyio.CapacityLimiter(TOKEN_PLACES), 0))
        self._tokens[token.token] = limiter, users + 1
        try:
            async with limiter:
                if token.lane is None:
                    yield
                else:
                    async with self._lanes:
                        yield
        finally:
            limiter, users = self._tokens.pop(token.token)
            if users > 1:
                self._tokens[token.token] = limiter, users - 1
