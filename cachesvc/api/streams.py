"""Hand the body of a request to a thread as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import anyio
from anyio import from_thread, to_thread
from fastapi import Request

_BATCH_BYTES = 1 << 20
"""Bytes that are handed to the receiving thread together."""

T = TypeVar("T")


async def receive(request: Request, act: Callable[[Iterator[bytes]], T]) -> T:
    """Run ``act`` in a thread with the chunks of the body, which has its place."""
    chunks = _iterate_from_thread(_join_chunks(request.stream()))
    threads: anyio.CapacityLimiter = request.app.state.receivers
    # Abandoned at shutdown: a silent client must not hold it up. GC and the next start clean up.
    return await to_thread.run_sync(act, chunks, abandon_on_cancel=True, limiter=threads)


async def _join_chunks(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the body in chunks of about a MiB, so that few hand-overs to the thread are needed."""
    chunks, size = [], 0
    async for chunk in stream:
        chunks.append(chunk)
        size += len(chunk)
        if size >= _BATCH_BYTES:
            yield b"".join(chunks)
            chunks, size = [], 0
    if size:
        yield b"".join(chunks)


def _iterate_from_thread(stream: AsyncIterator[bytes]) -> Iterator[bytes]:
    """Yields the chunks of ``stream`` in a worker thread."""

    async def step() -> bytes | None:
        return await anext(stream, None)

    while (chunk := from_thread.run(step)) is not None:
        yield chunk
