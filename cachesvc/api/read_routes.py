"""Resolving, listing, downloading."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import iterate_in_threadpool

from cachesvc.registry import answers, download, names, reports
from cachesvc.registry.tokens import whoami
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound, RangeInvalid
from cachesvc_client.wire.names import Namespace, ShortName, Tag
from cachesvc_client.wire.protocol import EntrySummary, NameSummary, ResolveAnswer, ResolveRequest, WhoAmI
from cachesvc_client.wire.reports import MAX_REPORT_BYTES, ReportAnswer, ReportRequest

from .access import SECURED, Handler, TheRegistry, TheToken, TokenRoute
from .body import MAX_BODY_BYTES, max_body
from .edge import Json, failure
from .metrics import Metrics, TheMetrics
from .openapi import BINARY, errors
from .ranges import wanted

RESOLVES = 2
"""Threads that resolve. Python runs one of them at a time: while one waits for the database another may work,
and more mostly pass the interpreter on. With eight a resolve took 1.6 times the CPU. What waits meanwhile is
asked for together (``turns``), so that a database that is far away needs no more of them."""

router = APIRouter(
    prefix="/v1",
    tags=["read"],
    route_class=TokenRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found"),
)


@router.get("/whoami", response_model=WhoAmI)
async def who_am_i(token: TheToken) -> Json:
    """The token in use."""
    return Json(whoami(token))


class ResolveRoute(TokenRoute):
    """Questions as clients put them are read here. To have FastAPI find out what the endpoint wants took
    longer than the look-up; it reads what cannot be read here, and says what is wrong with it."""

    def shortened(self, inner: Handler) -> Handler:
        async def handler(request: Request) -> Response:
            if request.headers.get("content-type") != "application/json":
                return await inner(request)
            state, body = request.app.state, await request.body()
            answer = answers.cached_answer(state.registry, request.state.token, body)
            if answer is not None:
                return _resolved(state.metrics, answer)
            asked = _read(body)
            return await (inner(request) if asked is None else _resolve(request, asked, body))

        return handler


def _read(body: bytes) -> ResolveRequest | None:
    try:
        return codec.build(ResolveRequest, codec.parse_json(body, limit=MAX_BODY_BYTES, what="the body"))
    except ValueError:
        return None


async def _resolve(request: Request, asked: ResolveRequest, body: bytes) -> Json:
    state = request.app.state
    try:
        answer = await state.resolves.ask(answers.Question(request.state.token, asked, body))
    except NotFound:
        state.metrics.resolved("unknown")
        raise
    return _resolved(state.metrics, answer)


def _resolved(metrics: Metrics, answer: bytes) -> Json:
    metrics.resolved("offered" if answers.offers_revision(answer) else "none_fits")
    return Json(answer)


async def post_resolve(request: Request, body: ResolveRequest) -> Json:
    """What fits this environment, with signed manifests inline; and why the rest does not."""
    return await _resolve(request, body, await request.body())


router.add_api_route(
    "/resolve",
    post_resolve,
    methods=["POST"],
    response_model=ResolveAnswer,
    route_class_override=ResolveRoute,
)


@router.post("/reports", response_model=ReportAnswer, responses=errors("too_many"))
@max_body(MAX_REPORT_BYTES)
async def post_report(
    registry: TheRegistry, token: TheToken, metrics: TheMetrics, body: ReportRequest
) -> Json:
    """What one start came to, for the role `report`: counted per revision and environment."""
    answer = await to_thread.run_sync(reports.report, registry, token, body)
    metrics.reported(body)
    return Json(answer)


@router.get("/entries/{entry}", response_model=EntrySummary)
async def get_entry(registry: TheRegistry, token: TheToken, entry: Digest) -> Json:
    """One entry with its head."""
    return Json(await to_thread.run_sync(names.get_entry, registry, token, entry))


@router.get("/namespaces/{namespace}/names", response_model=list[NameSummary])
async def get_names(registry: TheRegistry, token: TheToken, namespace: Namespace) -> Json:
    """The names of a namespace."""
    return Json(await to_thread.run_sync(names.list_names, registry, token, namespace))


@router.get("/namespaces/{namespace}/entries", response_model=list[EntrySummary])
async def get_entries(
    registry: TheRegistry,
    token: TheToken,
    namespace: Namespace,
    name: Annotated[ShortName | None, Query()] = None,
    tag: Annotated[Tag | None, Query()] = None,
) -> Json:
    """The entries of a namespace, newest first, at most 5000."""
    return Json(await to_thread.run_sync(names.list_entries, registry, token, namespace, name, tag))


PACK_ANSWERS = {
    200: {"content": BINARY, "description": "The whole pack; its ETag is the pack's digest"},
    206: {"content": BINARY, "description": "The range that was asked for"},
    **errors("range"),
}


@router.head(
    "/revisions/{revision}/pack",
    response_class=Response,
    responses={200: {"content": BINARY, "description": "As GET, without the body"}},
)
@router.get("/revisions/{revision}/pack", response_class=StreamingResponse, responses=PACK_ANSWERS)
async def get_pack(registry: TheRegistry, token: TheToken, revision: Digest, request: Request) -> Response:
    """The bytes of a revision, with ranges (one per request) and If-Range."""
    pack = await to_thread.run_sync(download.find_pack, registry, token, revision)
    etag = f'"{pack.digest}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, immutable, max-age=31536000",
    }
    try:
        part = wanted(request.headers.get("range"), request.headers.get("if-range"), etag, pack.size)
    except RangeInvalid as error:
        answer = failure(error)
        answer.headers["Content-Range"] = f"bytes */{pack.size}"
        return answer
    start, length = part or (0, pack.size)
    headers["Content-Length"] = str(length)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{pack.size}"
    status = 200 if part is None else 206
    if request.method == "HEAD":
        return Response(None, status, headers, "application/octet-stream")
    chunks = await to_thread.run_sync(download.read_pack, registry, pack, start, length)
    return StreamingResponse(_sent(chunks), status, headers, "application/octet-stream")


async def _sent(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for chunk in iterate_in_threadpool(chunks):
            yield chunk
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
