"""Routes of trusted publishers: their rules, and the exchange of a CI job's token."""

from __future__ import annotations

import anyio
from anyio import to_thread
from fastapi import APIRouter, Request, Response

from cachesvc.door.route import DoorRoute
from cachesvc.registry import publishers
from cachesvc_client.wire.errors import TooMany
from cachesvc_client.wire.protocol import TokenAnswer
from cachesvc_client.wire.publishers import ExchangeRequest, PublisherRecord, PublisherRequest

from .access import SECURED, AdminRoute, TheRegistry, TheToken
from .edge import Json
from .openapi import errors

EXCHANGES = 4
"""Exchanges at once in one process: an issuer may take seconds to answer, and requests need threads."""
MAX_WAITING = 64
"""Exchanges that wait for their turn in one process, at most."""

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
    answer = Json(await to_thread.run_sync(publishers.exchange, registry, body, limiter=limiter), 201)
    answer.headers["Cache-Control"] = "no-store"
    return answer


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
