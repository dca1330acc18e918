"""Routes that publish."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from cachesvc.door.declared import MAX_COMMIT_BYTES
from cachesvc.door.route import Handler
from cachesvc.registry import publish
from cachesvc.registry.context import Registry
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.requests.claims import ClaimRef
from cachesvc_client.wire.requests.protocol import (
    BundleRequest,
    CommitAnswer,
    CommitRequest,
    StoredAnswer,
    UploadAnswer,
    UploadRequest,
)

from ..access import SECURED, TheRegistry, TheToken
from ..edge import Json
from ..mirroring import ForwardedRoute
from ..openapi import BINARY, errors
from ..streams import receive

BODY = {"requestBody": {"required": True, "content": BINARY}}

router = APIRouter(
    prefix="/v1",
    tags=["publish"],
    route_class=ForwardedRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found", "lease_lost", "storage_full"),
)


@router.post("/uploads", response_model=UploadAnswer, status_code=201)
async def post_upload(registry: TheRegistry, token: TheToken, body: UploadRequest) -> Json:
    """Takes a lease for a pack of exactly `size` bytes."""
    return Json(await to_thread.run_sync(publish.begin, registry, token, body), 201)


@router.put("/uploads/{upload}/pack", response_model=StoredAnswer, openapi_extra=BODY)
async def put_pack(registry: TheRegistry, token: TheToken, upload: str, request: Request) -> Json:
    """Streams the pack in. A transfer that failed may be sent again from its beginning."""
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdigit() else None
    return Json(
        await receive(request, lambda chunks: publish.receive(registry, token, upload, chunks, announced))
    )


@router.post(
    "/bundles",
    response_model=CommitAnswer,
    openapi_extra=BODY,
    responses=errors("head_conflict", "claim_lost", "untrusted"),
)
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
    return Json(await receive(request, lambda chunks: publish.bundle(registry, token, bundle, chunks)))


class CommitRoute(ForwardedRoute):
    """Parses commits by itself, in a thread, and forgets the body then: FastAPI keeps it, and a large one is
    in memory five times with that. FastAPI parses what this route cannot, and says what is wrong with it."""

    def shortcut(self, inner: Handler) -> Handler:
        forwarded = super().shortcut(inner)

        async def handler(request: Request) -> Response:
            registry: Registry = request.app.state.registry
            if registry.mirror is not None or request.headers.get("content-type") != "application/json":
                return await forwarded(request)
            commit = await to_thread.run_sync(_parse, await request.body())
            if commit is None:
                return await inner(request)
            request._body = b""
            return await post_commit(registry, request.state.token, request.path_params["upload"], commit)

        return handler


def _parse(body: bytes) -> CommitRequest | None:
    try:
        return codec.build(CommitRequest, codec.parse_json(body, limit=MAX_COMMIT_BYTES, what="the body"))
    except ValueError:
        return None


async def post_commit(registry: TheRegistry, token: TheToken, upload: str, body: CommitRequest) -> Json:
    """Makes the uploaded pack the head of its entry, if the head is the one that is named."""
    return Json(await to_thread.run_sync(publish.commit, registry, token, upload, body))


router.add_api_route(
    "/uploads/{upload}/commit",
    post_commit,
    methods=["POST"],
    response_model=CommitAnswer,
    responses=errors("head_conflict", "claim_lost", "untrusted"),
    route_class_override=CommitRoute,
)


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
