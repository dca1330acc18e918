"""Bound a body while it comes: its size, its deadline, and how slow it may be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect

from cachesvc_client.wire.errors import TooLarge, Unavailable

from .declared import Body

GRACE_SECONDS = 20.0
"""Seconds of waiting for a body before its rate counts."""
SILENCE_SECONDS = 60.0
"""Seconds without a byte of a body after which it is ended."""
PRESSED_RATE = 64 << 10
"""Bytes in a second that a body has, on average, while others wait for what it holds; else it is ended. What
came while the body itself waited for its share counts nothing: the kernel has kept megabytes of it."""
_AT_ONCE_SECONDS = 0.002
"""Seconds of waiting up to which a part of a body was there already."""
PRESSED_SECONDS = 5.0
"""Seconds of waiting for a body before that counts."""
_TICK_SECONDS = 2.0
"""Seconds between two looks at a body of which nothing comes: a thousand of them wait at once."""

Message = MutableMapping[str, Any]


class Paced:
    """The ``receive`` of a request whose body is bounded. ``pressed``: whether others wait for what it
    holds."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Message]],
        body: Body,
        *,
        pressed: Callable[[], bool],
    ) -> None:
        self._receive, self._body, self._pressed = receive, body, pressed
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._waited, self._since = 0.0, 0.0
        self._received, self._awaited = 0, 0
        self._ended = False
        self._tick: asyncio.TimerHandle | None = None

    async def __call__(self) -> Message:
        """Return the next message. Raise ``TooLarge``, or ``Unavailable`` for a body that is slow."""
        if self._ended:  # what may still come is the end of the connection
            return await self._receive()
        self._since = self._loop.time()
        message = await self._next()
        waited, size = self._loop.time() - self._since, len(message.get("body", b""))
        self._waited += waited
        self._received += size
        self._awaited += size if waited > _AT_ONCE_SECONDS else 0
        if self._received > self._body.size:
            raise TooLarge(f"a body of more than the {self._body.size} bytes that are allowed here")
        self._ended = not message.get("more_body", False)
        if not self._ended and self._too_slow(self._waited):
            raise self._slow()
        return message

    async def read(self) -> bytes:
        """Return the whole body. Raise ``ClientDisconnect``."""
        parts = []
        while not self._ended:
            message = await self()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
        return b"".join(parts)

    async def _next(self) -> Message:
        left = self._began + self._body.deadline - self._since
        try:
            async with asyncio.timeout(min(SILENCE_SECONDS, max(0.0, left))) as timeout:
                first = max(_TICK_SECONDS, PRESSED_SECONDS - self._waited)
                self._tick = self._loop.call_later(first, self._look, timeout)
                try:
                    return await self._receive()
                finally:
                    self._tick.cancel()
        except TimeoutError:
            raise self._slow() from None

    def _look(self, timeout: asyncio.Timeout) -> None:
        if self._too_slow(self._waited + self._loop.time() - self._since):
            timeout.reschedule(self._loop.time())
        else:
            self._tick = self._loop.call_later(_TICK_SECONDS, self._look, timeout)

    def _too_slow(self, waited: float) -> bool:
        if waited > GRACE_SECONDS and self._received < (waited - GRACE_SECONDS) * self._body.rate:
            return True
        return waited > PRESSED_SECONDS and self._awaited < waited * PRESSED_RATE and self._pressed()

    def _slow(self) -> Unavailable:
        return Unavailable(
            f"the body came too slowly: {self._received} bytes after {self._loop.time() - self._began:.0f} s",
            "send it again",
        )
