"""Routes of trusted publishers: their rules, and the exchange of a CI job's token."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

import anyio
from anyio import to_thread
from fastapi import APIRouter, Request, Response

from cachesvc.door.route import DoorRoute
from cachesvc.oidc.issuers import WAIT_SECONDS
from cachesvc.registry.trust import publishers
from cachesvc.schema.access import TokenAnswer
from cachesvc.schema.publishers import ExchangeRequest, PublisherRecord, PublisherRequest
from cachesvc_client.wire.errors import TooMany, Unavailable

from ..access import SECURED, AdminRoute, TheRegistry, TheToken
from ..edge import Json
from ..openapi import errors

EXCHANGES = 4
"""Exchanges at once in one process: requests need threads."""
MAX_WAITING = 64
"""Exchanges that wait for their turn in one process, at most; and those that wait for the keys of one
issuer, which have no thread."""
SPREAD_SECONDS = 1.0
"""Seconds over which those are answered who ask for an issuer that does not answer."""

open_router = APIRouter(
    prefix="/v1",
    tags=["service"],
    route_class=DoorRoute,
    responses=errors("unauthenticated", "forbidden", "too_many"),
)
router = APIRouter(
    prefix="/v1",
    tags=["admin"],
    route_class=AdminRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found"),
)


@open_router.post("/oidc/token", response_model=TokenAnswer, status_code=201)
async def post_exchange(registry: TheRegistry, request: Request, body: ExchangeRequest) -> Json:
    """Exchanges the OpenID Connect token of a CI job for a token of minutes, by the rules of administrators.
    A job's token counts once."""
    limiter: anyio.CapacityLimiter = request.app.state.exchanges
    if limiter.statistics().tasks_waiting >= MAX_WAITING:
        raise TooMany("too many exchanges at once", "try again in some seconds")
    given: publishers.Asked | TokenAnswer | None
    async with _one_after_the_other():
        given = publishers.ask_in_memory(registry, body)
    if given is None:
        given = await to_thread.run_sync(publishers.begin_exchange, registry, body, limiter=limiter)
    if isinstance(given, publishers.Asked):
        await _wait(request.app.state.waiting_for_issuers, given.issuer, given.keys)
        async with _one_after_the_other():
            registry.outside.issuers.check_known(given.issuer)
        given = await to_thread.run_sync(publishers.exchange, registry, body, limiter=limiter)
    answer = Json(given, 201)
    answer.headers["Cache-Control"] = "no-store"
    return answer


async def _wait(waiting: Counter[str], issuer: str, keys: Future[None]) -> None:
    """Waits for an issuer that is asked for its keys. Raises ``TooMany`` if many wait for this one."""
    if waiting[issuer] >= MAX_WAITING:
        raise TooMany(f"too many exchanges wait for issuer {issuer[:120]}", "try again in some seconds")
    waiting[issuer] += 1
    try:
        with anyio.move_on_after(WAIT_SECONDS):
            await asyncio.shield(asyncio.wrap_future(keys))
    finally:
        waiting[issuer] -= 1
        if not waiting[issuer]:
            del waiting[issuer]


@asynccontextmanager
async def _one_after_the_other() -> AsyncIterator[None]:
    """Lets ``Unavailable`` out of the block after a time of its own: many ask for an issuer that is silent,
    and learn it at once. So no one else waits for all of them, and who asks at once again asks less often."""
    try:
        yield
    except Unavailable:
        await anyio.sleep(random.uniform(0, SPREAD_SECONDS))
        raise


@router.get("/publishers", response_model=list[PublisherRecord])
async def get_publishers(registry: TheRegistry, token: TheToken) -> Json:
    """Lists the rules by which CI jobs get tokens."""
    return Json(await to_thread.run_sync(publishers.list_publishers, registry, token))


@router.post("/publishers", response_model=PublisherRecord, status_code=201)
async def post_publisher(registry: TheRegistry, token: TheToken, body: PublisherRequest) -> Json:
    """Adds a rule by which CI jobs get tokens."""
    return Json(await to_thread.run_sync(publishers.add_publisher, registry, token, body), 201)


@router.delete("/publishers/{publisher}", status_code=204, response_class=Response)
async def delete_publisher(registry: TheRegistry, token: TheToken, publisher: str) -> Response:
    """Removes a rule, and ends the tokens that it gave: everywhere within 5 s."""
    await to_thread.run_sync(publishers.remove_publisher, registry, token, publisher)
    return Response(status_code=204)
