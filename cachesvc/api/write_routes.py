"""Routes that publish."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, TypeVar

import anyio
from anyio import from_thread, to_thread
from fastapi import APIRouter, Query, Request, Response

from cachesvc.domain.access import Token
from cachesvc.registry import publish
from cachesvc_client.wire.claims import ClaimRef
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest, Unavailable
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.protocol import (
    BundleRequest,
    CommitAnswer,
    CommitRequest,
    StoredAnswer,
    UploadAnswer,
    UploadRequest,
)
from cachesvc_client.wire.records import MAX_ENVELOPE_BYTES

from .access import SECURED, TheRegistry, TheToken, TokenRoute
from .body import max_body
from .edge import Json
from .openapi import BINARY, errors
from .upload_places import UploadPlaces

SILENCE_SECONDS = 60
"""Seconds without a byte after which an upload is ended: it occupies a thread."""
MAX_COMMIT_BYTES = MAX_ENVELOPE_BYTES + (MAX_ENVELOPE_BYTES >> 3) + 4096
"""Bytes of a commit, at most: an envelope as JSON text, whose few quotes are escaped and whose base64 is
not."""
LEAST_RATE = 4096
"""Bytes in a second that a client sends on average, at least, once the registry has waited
``SILENCE_SECONDS`` for it in all. A slower upload is ended."""
_BATCH_BYTES = 1 << 20
"""Bytes that are handed to the receiving thread together."""

T = TypeVar("T")
BODY = {"requestBody": {"required": True, "content": BINARY}}

router = APIRouter(
    prefix="/v1",
    tags=["publish"],
    route_class=TokenRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found", "lease_lost", "storage_full"),
)


@router.post("/uploads", response_model=UploadAnswer, status_code=201)
async def post_upload(registry: TheRegistry, token: TheToken, body: UploadRequest) -> Json:
    """Takes a lease for a pack of exactly `size` bytes."""
    return Json(await to_thread.run_sync(publish.begin, registry, token, body), 201)


@router.put("/uploads/{upload}/pack", response_model=StoredAnswer, openapi_extra=BODY)
@max_body(None)
async def put_pack(registry: TheRegistry, token: TheToken, upload: str, request: Request) -> Json:
    """Streams the pack in. A transfer that failed may be sent again from its beginning."""
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdigit() else None
    return Json(
        await _receive(
            request, token, lambda chunks: publish.receive(registry, token, upload, chunks, announced)
        )
    )


@router.post(
    "/bundles",
    response_model=CommitAnswer,
    openapi_extra=BODY,
    responses=errors("head_conflict", "claim_lost", "untrusted"),
)
@max_body(None)
async def post_bundle(
    registry: TheRegistry,
    token: TheToken,
    request: Request,
    namespace: Annotated[Namespace, Query()],
    name: Annotated[ShortName, Query()],
    lane: Annotated[Lane | None, Query()] = None,
    head: Annotated[Digest | None, Query()] = None,
    claim: Annotated[Digest | None, Query()] = None,
    holder: Annotated[str | None, Query()] = None,
    fence: Annotated[int | None, Query()] = None,
    deed: Annotated[str | None, Query()] = None,
) -> Json:
    """Uploads and commits a small bundle in one request. A bundle is the magic line `cachesvc-bundle-1`, the
    envelope's length (8 bytes, big-endian), the envelope, the pack. `claim`, `holder` and `fence`: all, or
    none."""
    try:
        bundle = BundleRequest(namespace, name, lane, head, _claim(claim, holder, fence), deed)
    except ValueError as error:
        raise InvalidRequest(f"query: {error}") from None
    return Json(
        await _receive(request, token, lambda chunks: publish.bundle(registry, token, bundle, chunks))
    )


@router.post(
    "/uploads/{upload}/commit",
    response_model=CommitAnswer,
    responses=errors("head_conflict", "claim_lost", "untrusted"),
)
@max_body(MAX_COMMIT_BYTES)
async def post_commit(registry: TheRegistry, token: TheToken, upload: str, body: CommitRequest) -> Json:
    """Makes the uploaded pack the head of its entry, if the head is the one that is named."""
    return Json(await to_thread.run_sync(publish.commit, registry, token, upload, body))


@router.delete("/uploads/{upload}", status_code=204, response_class=Response)
async def delete_upload(registry: TheRegistry, token: TheToken, upload: str) -> Response:
    """Ends an upload and its lease."""
    await to_thread.run_sync(publish.abort, registry, token, upload)
    return Response(status_code=204)


def _claim(key: Digest | None, holder: str | None, fence: int | None) -> ClaimRef | None:
    if key is None and holder is None and fence is None:
        return None
    if key is None or holder is None or fence is None:
        raise ValueError("claim, holder and fence: all, or none")
    return ClaimRef(key, holder, fence)


async def _receive(request: Request, token: Token, act: Callable[[Iterator[bytes]], T]) -> T:
    """Runs ``act`` in a thread, with the chunks of the body, once the token has a place."""
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
