"""The route by which agents of nodes find packs at each other."""

from __future__ import annotations

from anyio import to_thread
from fastapi import APIRouter

from cachesvc.registry.mirror import peers
from cachesvc_client.wire.requests.peers import PeersAnswer, PeersRequest

from ..access import SECURED, TheRegistry, TheToken, TokenRoute
from ..edge import Json
from ..openapi import errors

router = APIRouter(
    prefix="/v1/peers",
    tags=["read"],
    route_class=TokenRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found"),
)


@router.post("", response_model=PeersAnswer)
async def post_peers(registry: TheRegistry, token: TheToken, body: PeersRequest) -> Json:
    """Keeps which packs an agent can give for a few minutes, and names agents that have those that it wants.

    Only where the setting `peers` is on; else 404."""
    return Json(await to_thread.run_sync(peers.exchange, registry, token, body))
