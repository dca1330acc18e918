"""Hand the body of a request to a thread as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import anyio
from anyio import from_thread, to_thread
from fastapi import Request

from cachesvc.domain.access import Token
from cachesvc_client.wire.errors import Unavailable

from .upload_places import UploadPlaces

SILENCE_SECONDS = 60
"""Seconds without a byte after which an upload is ended: it occupies a thread."""
LEAST_RATE = 4096
"""Bytes in a second that a client sends on average, at least, once the registry has waited
``SILENCE_SECONDS`` for it in all. A slower upload is ended."""
_BATCH_BYTES = 1 << 20
"""Bytes that are handed to the receiving thread together."""

T = TypeVar("T")


async def receive(request: Request, token: Token, act: Callable[[Iterator[bytes]], T]) -> T:
    """Runs ``act`` in a thread, with the chunks of the body, once the token has a place. Raises
    ``Unavailable`` for a body that stops coming."""
    chunks = _iterate_from_thread(_join_chunks(request.stream()))
    places: UploadPlaces = request.app.state.uploads
    async with places.place(token):
        # Abandoned at shutdown: a silent client must not hold it up. GC and the next start clean up.
        return await to_thread.run_sync(act, chunks, abandon_on_cancel=True, limiter=places.threads)


async def _join_chunks(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the body in chunks of about a MiB, so that few hand-overs to the thread are needed."""
    chunks, size = [], 0
    ended = False
    received, waited = 0, 0.0
    while not ended:
        began = anyio.current_time()
        try:
            with anyio.fail_after(SILENCE_SECONDS):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise Unavailable(f"the upload was silent for {SILENCE_SECONDS} s", "send it again") from None
        ended = chunk is None
        received += len(chunk or b"")
        waited += anyio.current_time() - began
        if waited > SILENCE_SECONDS and received < waited * LEAST_RATE:
            raise Unavailable(f"the upload was slower than {LEAST_RATE} bytes in a second", "send it again")
        if chunk:
            chunks.append(chunk)
            size += len(chunk)
        if chunks and (ended or size >= _BATCH_BYTES):
            yield b"".join(chunks)
            chunks, size = [], 0


def _iterate_from_thread(stream: AsyncIterator[bytes]) -> Iterator[bytes]:
    """Yields the chunks of ``stream`` in a worker thread."""

    async def step() -> bytes | None:
        return await anext(stream, None)

    while (chunk := from_thread.run(step)) is not None:
        yield chunk
