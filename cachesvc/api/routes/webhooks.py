"""Routes of webhooks."""

from __future__ import annotations

import anyio
from anyio import to_thread
from fastapi import APIRouter, Request, Response

from cachesvc.registry import webhooks
from cachesvc.schema.webhooks import DeliveryOutcome, WebhookRecord, WebhookRequest
from cachesvc_client.wire.errors import TooMany

from ..access import SECURED, AdminRoute, TheRegistry, TheToken
from ..edge import Json
from ..openapi import errors

TESTS = 4
"""Tests at once in one process: a receiver may need seconds to answer, and requests need threads."""
MAX_WAITING = 16
"""Tests that wait for their turn in one process, at most."""

router = APIRouter(
    prefix="/v1",
    tags=["admin"],
    route_class=AdminRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found", "too_many"),
)


@router.get("/webhooks", response_model=list[WebhookRecord])
async def get_webhooks(registry: TheRegistry, token: TheToken) -> Json:
    """Lists the receivers of events, with what waits for each."""
    return Json(await to_thread.run_sync(webhooks.list_webhooks, registry, token))


@router.post("/webhooks", response_model=WebhookRecord, status_code=201)
async def post_webhook(registry: TheRegistry, token: TheToken, body: WebhookRequest) -> Json:
    """Adds a receiver of the events of a namespace. Only this answer has the secret of its signatures."""
    answer = Json(await to_thread.run_sync(webhooks.add_webhook, registry, token, body), 201)
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.post("/webhooks/{webhook}/test", response_model=DeliveryOutcome)
async def post_webhook_test(registry: TheRegistry, token: TheToken, request: Request, webhook: str) -> Json:
    """Sends a receiver an event of the type ``webhook.test`` now, and says what came of it."""
    limiter: anyio.CapacityLimiter = request.app.state.webhook_tests
    if limiter.statistics().tasks_waiting >= MAX_WAITING:
        raise TooMany("too many tests at once", "try again in some seconds")
    return Json(await to_thread.run_sync(webhooks.try_webhook, registry, token, webhook, limiter=limiter))


@router.delete("/webhooks/{webhook}", status_code=204, response_class=Response)
async def delete_webhook(registry: TheRegistry, token: TheToken, webhook: str) -> Response:
    """Removes a receiver with the events that wait for it."""
    await to_thread.run_sync(webhooks.remove_webhook, registry, token, webhook)
    return Response(status_code=204)
