"""Routes of claims: who compiles now what no entry holds yet."""

from __future__ import annotations

from functools import partial

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from cachesvc.registry import claims
from cachesvc.registry.waiting import Waiting
from cachesvc_client.wire.requests.claims import ClaimAnswer, ClaimRef, ClaimRelease, ClaimRequest

from ..access import SECURED, TheRegistry, TheToken, leave_count
from ..edge import Json
from ..metrics import TheMetrics
from ..mirroring import ForwardedRoute
from ..openapi import errors

router = APIRouter(
    prefix="/v1/claims",
    tags=["publish"],
    route_class=ForwardedRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden"),
)


@router.post("", response_model=ClaimAnswer, responses=errors("too_many"))
async def post_claim(token: TheToken, metrics: TheMetrics, request: Request, body: ClaimRequest) -> Json:
    """Takes the claim, or says who has it: at once, or when that changes within `wait` seconds."""
    waiting: Waiting = request.app.state.waiting
    answer = await waiting.claim(token, body, request.is_disconnected, on_wait=partial(leave_count, request))
    metrics.claimed(answer.state)
    return Json(answer)


@router.post("/renew", response_model=ClaimAnswer, responses=errors("claim_lost"))
async def post_renew(registry: TheRegistry, token: TheToken, body: ClaimRef) -> Json:
    """Extends a claim: its holder still compiles."""
    return Json(await to_thread.run_sync(claims.renew, registry, token, body))


@router.post("/release", status_code=204, response_class=Response, responses=errors("claim_lost"))
async def post_release(registry: TheRegistry, token: TheToken, body: ClaimRelease) -> Response:
    """Gives a claim back, and wakes the requests that wait for it."""
    await to_thread.run_sync(claims.release, registry, token, body)
    return Response(status_code=204)
