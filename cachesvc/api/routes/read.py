"""Routes that read: resolve, list, download, report."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from cachesvc.domain.usefulness import KEPT_DAYS
from cachesvc.door.declared import MAX_RESOLVE_BYTES
from cachesvc.door.route import Handler
from cachesvc.door.sending import StreamedAnswer
from cachesvc.door.shares import Owner
from cachesvc.registry import answers, download, misses, names, reports, wanted
from cachesvc.registry.access.tokens import whoami
from cachesvc.registry.mirror import packs
from cachesvc.registry.resolve import Large
from cachesvc.schema.wanted import MissesAnswer, SeenEnvironment, WantedAnswer
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound, RangeInvalid
from cachesvc_client.wire.names import LATEST, Lane, Name, Namespace, ShortName, Tag
from cachesvc_client.wire.requests.protocol import (
    AGE_HEADER,
    EntrySummary,
    NameSummary,
    ResolveAnswer,
    ResolveRequest,
    WhoAmI,
)
from cachesvc_client.wire.requests.reports import ReportAnswer, ReportRequest

from ..access import SECURED, TheRegistry, TheToken, TokenRoute
from ..edge import Json, failure
from ..metrics import Metrics, TheMetrics
from ..mirroring import present_pack
from ..openapi import BINARY, errors
from ..ranges import requested_range

RESOLVES = 2
"""Threads that resolve. Python runs one of them at a time: while one waits for the database, another may
work, and more threads only wait for the interpreter. With eight a resolve took 1.6 times the CPU. Requests
that wait are resolved in one batch (``batching``), so that a distant database needs no more threads
either."""
LONG_BYTES = 8 << 10
"""Bytes of a resolve above which it waits for a thread of its own: it costs more, and no honest client sends
one. Others do not wait for it."""

_AGE = AGE_HEADER.lower().encode()

router = APIRouter(
    prefix="/v1",
    tags=["read"],
    route_class=TokenRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found"),
)


@router.get("/whoami", response_model=WhoAmI)
async def who_am_i(token: TheToken) -> Json:
    """Returns the token in use."""
    return Json(whoami(token))


class ResolveRoute(TokenRoute):
    """Parses the requests that clients send by itself: FastAPI's parse took longer than the look-up. FastAPI
    parses what this route cannot, and says what is wrong with it."""

    def shortcut(self, inner: Handler) -> Handler:
        async def handler(request: Request) -> Response:
            if request.headers.get("content-type") != "application/json":
                return await inner(request)
            state, body = request.app.state, await request.body()
            answer = answers.cached_answer(state.registry, request.state.token, body)
            if answer is not None:
                return _count_and_render(state.metrics, answer)
            resolve_request = _parse(body)
            return await (
                inner(request) if resolve_request is None else _resolve(request, resolve_request, body)
            )

        return handler


def _parse(body: bytes) -> ResolveRequest | None:
    try:
        return codec.build(ResolveRequest, codec.parse_json(body, limit=MAX_RESOLVE_BYTES, what="the body"))
    except ValueError:
        return None


async def _resolve(request: Request, resolve_request: ResolveRequest, body: bytes) -> Json:
    state = request.app.state
    token = request.state.token
    batches = state.long_resolves if len(body) > LONG_BYTES else state.resolves
    try:
        question = answers.Question(token, resolve_request, body)
        answer = await batches.ask(question, token.token)
        if isinstance(answer, Large):  # it is made once its bytes have their place
            await state.door.reserve(request, Owner.of(token), answer.size)
            answer = await state.large_resolves.ask(question, token.token)
    except NotFound:
        state.metrics.resolved("unknown")
        raise
    return _count_and_render(state.metrics, answer)


def _count_and_render(metrics: Metrics, answer: answers.AgedAnswer) -> Json:
    metrics.resolved("offered" if answers.offers_revision(answer.body) else "none_fits")
    rendered = Json(answer.body)
    rendered.raw_headers.append((_AGE, b"%d" % answer.age))
    return rendered


async def post_resolve(request: Request, body: ResolveRequest) -> Json:
    """Returns what fits this environment, with signed manifests, and why the rest does not."""
    return await _resolve(request, body, await request.body())


router.add_api_route(
    "/resolve",
    post_resolve,
    methods=["POST"],
    response_model=ResolveAnswer,
    route_class_override=ResolveRoute,
)


@router.post("/reports", response_model=ReportAnswer, responses=errors("too_many"))
async def post_report(token: TheToken, metrics: TheMetrics, request: Request, body: ReportRequest) -> Json:
    """Counts the outcome of one start by revision and environment, for the role `report`."""
    # On one thread: reports of a fleet that starts at once took all threads, and downloads waited for them.
    answer = await request.app.state.reports.ask(reports.SentReport(token, body), token.token)
    metrics.reported(body)
    return Json(answer)


@router.get("/entries/{entry}", response_model=EntrySummary)
async def get_entry(registry: TheRegistry, token: TheToken, entry: Digest) -> Json:
    """Returns one entry with its head."""
    return Json(await to_thread.run_sync(names.get_entry, registry, token, entry))


@router.get("/namespaces/{namespace}/names", response_model=list[NameSummary])
async def get_names(
    registry: TheRegistry,
    token: TheToken,
    namespace: Namespace,
    trunk: Annotated[bool, Query()] = False,
) -> Json:
    """Lists the names of a namespace, with `trunk` those of its trunk alone."""
    return Json(await to_thread.run_sync(names.list_names, registry, token, namespace, trunk))


@router.get("/namespaces/{namespace}/entries", response_model=list[EntrySummary])
async def get_entries(
    registry: TheRegistry,
    token: TheToken,
    namespace: Namespace,
    name: Annotated[ShortName | None, Query()] = None,
    tag: Annotated[Tag | None, Query()] = None,
    trunk: Annotated[bool, Query()] = False,
) -> Json:
    """Lists the entries of a namespace, newest first, at most 5000 with 6 MiB of facts; of lanes fewer, with
    `trunk` none."""
    return Json(await to_thread.run_sync(names.list_entries, registry, token, namespace, name, tag, trunk))


@router.get("/namespaces/{namespace}/environments", response_model=list[SeenEnvironment])
async def get_environments(
    registry: TheRegistry,
    token: TheToken,
    namespace: Namespace,
    name: Annotated[ShortName, Query()],
    tag: Annotated[Tag, Query()] = LATEST,
    lane: Annotated[Lane | None, Query()] = None,
) -> Json:
    """Lists the environments whose services reported starts with a name, the last seen first."""
    place = Name(namespace, name, tag)
    return Json(await to_thread.run_sync(wanted.list_seen, registry, token, place, lane or token.lane))


@router.get("/namespaces/{namespace}/wanted", response_model=WantedAnswer)
async def get_wanted(
    registry: TheRegistry,
    token: TheToken,
    namespace: Namespace,
    name: Annotated[ShortName, Query()],
    tag: Annotated[Tag, Query()] = LATEST,
    lane: Annotated[Lane | None, Query()] = None,
    days: Annotated[int, Query(ge=1, le=KEPT_DAYS)] = wanted.DAYS,
) -> Json:
    """Lists what services of a name wanted and compiled in the last days, the most expensive first."""
    place = Name(namespace, name, tag)
    return Json(
        await to_thread.run_sync(wanted.list_wanted, registry, token, place, lane or token.lane, days)
    )


@router.get("/misses", response_model=MissesAnswer)
async def get_misses(
    registry: TheRegistry,
    token: TheToken,
    namespace: Annotated[Namespace | None, Query()] = None,
    days: Annotated[int, Query(ge=1, le=KEPT_DAYS)] = wanted.DAYS,
) -> Json:
    """Lists what services compiled in the last days and would compile again, why, and what to do."""
    return Json(await to_thread.run_sync(misses.list_misses, registry, token, namespace, days))


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
    """Returns the bytes of a revision; understands one range per request, and If-Range."""
    pack = await to_thread.run_sync(download.find_pack, registry, token, revision)
    etag = f'"{pack.digest}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, immutable, max-age=31536000",
    }
    try:
        part = requested_range(request.headers.get("range"), request.headers.get("if-range"), etag, pack.size)
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
    if packs.is_absent(pack):
        pack = await present_pack(registry, token, revision, pack)
    chunks = await to_thread.run_sync(download.read_pack, registry, pack, start, length)
    return StreamedAnswer(chunks, status, headers, "application/octet-stream")
