"""Bound the memory of answers until they are read: each has a share, and a slow reader of one is ended
where others wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import islice

from anyio import to_thread
from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from .pace import PRESSED_RATE, PRESSED_SECONDS
from .shares import Owner, Shares

END = "cachesvc.end"
"""Key in a request's scope of the function that ends its connection at once, with what it has not read."""
PIECE_BYTES = 64 << 10
"""Bytes of an answer that are passed to a connection at once: it keeps a copy of what is not read."""
_CHUNKS = 16
"""Chunks of a store that are sent as one piece to who reads fast: a piece costs a switch of threads."""
LARGE_PIECE_BYTES = 2 * _CHUNKS * PIECE_BYTES
"""Bytes that such pieces need at once: one that is read, and one that is sent."""
SLOW_SECONDS = 0.5
"""Seconds for a piece from which on a reader is slow."""
_TICK_SECONDS = 2.0
"""Seconds between two checks of a reader who is slow."""


class SharedAnswer(Response):
    """Sends an answer, which has its share until it is sent.

    ``share``: of the memory, reserved already. ``pressed``: whether others wait for it.
    """

    def __init__(
        self, response: Response, share: AbstractAsyncContextManager[object], pressed: Callable[[], bool]
    ) -> None:
        super().__init__(None, response.status_code)
        self.raw_headers = response.raw_headers
        self._response, self._share, self._pressed = response, share, pressed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, and then return its share."""
        async with self._share:
            await self._response(scope, receive, PacedSend(scope, send, self._pressed))


class PacedSend:
    """The ``send`` of an answer: in pieces, and not to who reads slowly while others wait."""

    def __init__(self, scope: Scope, send: Send, pressed: Callable[[], bool]) -> None:
        self._send, self._pressed = send, pressed
        self._end: Callable[[], None] = scope.get(END, _connectionless)
        self._loop = asyncio.get_running_loop()
        self._waited, self._since, self._sent = 0.0, 0.0, 0

    async def __call__(self, message: Message) -> None:
        """Send a message of the answer."""
        body = message.get("body", b"")
        if len(body) <= PIECE_BYTES:
            await self._pass(message)
            return
        view = memoryview(body)
        for start in range(0, len(view), PIECE_BYTES):
            piece = bytes(view[start : start + PIECE_BYTES])
            more = message.get("more_body", False) or start + PIECE_BYTES < len(view)
            await self._pass({"type": message["type"], "body": piece, "more_body": more})

    async def _pass(self, message: Message) -> None:
        self._since = self._loop.time()
        first = max(_TICK_SECONDS, PRESSED_SECONDS - self._waited)
        self._tick = self._loop.call_later(first, self._look)
        try:
            await self._send(message)
        finally:
            self._tick.cancel()
        self._waited += self._loop.time() - self._since
        self._sent += len(message.get("body", b""))

    def _look(self) -> None:
        waited = self._waited + self._loop.time() - self._since
        if waited > PRESSED_SECONDS and self._sent < waited * PRESSED_RATE and self._pressed():
            self._end()
        else:
            self._tick = self._loop.call_later(_TICK_SECONDS, self._look)


def _connectionless() -> None:
    """End nothing: this request came over no connection of a server."""


class StreamedAnswer(StreamingResponse):
    """Sends what a store reads, in large pieces while their memory has a share, and else in small ones: a
    crowd of slow readers has a small piece each."""

    def __init__(
        self, chunks: Iterator[bytes], status: int, headers: dict[str, str], media_type: str
    ) -> None:
        """``chunks``: of ``PIECE_BYTES`` at most."""
        super().__init__(self._pieces(chunks), status, headers, media_type)
        self.shares: Shares | None = None
        """Shares of large pieces; ``None``: these have no bound."""
        self.owner = Owner("")

    async def _pieces(self, chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        is_large, is_slow = False, False
        try:
            while True:
                if not is_large and not is_slow:
                    is_large = self.shares is None or self.shares.try_hold(self.owner, LARGE_PIECE_BYTES)
                piece = await to_thread.run_sync(_take, chunks, _CHUNKS if is_large and not is_slow else 1)
                if not piece:
                    return
                was_slow, began = is_slow, clock()
                yield piece
                # The piece before this one has left its place in memory.
                is_slow = clock() - began > SLOW_SECONDS
                if is_large and was_slow:
                    is_large = False
                    self._release()
        finally:
            if is_large:
                self._release()
            close = getattr(chunks, "close", None)
            if close is not None:
                close()

    def _release(self) -> None:
        if self.shares is not None:
            self.shares.release(self.owner, LARGE_PIECE_BYTES)


def _take(chunks: Iterator[bytes], number: int) -> bytes:
    return b"".join(islice(chunks, number))
