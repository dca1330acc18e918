"""The route by which mirrors learn what this registry offers."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query

from cachesvc.registry.mirror import heads_listing
from cachesvc.schema.mirrors import HeadsPage
from cachesvc_client.wire.digest import Digest

from ..access import SECURED, TheRegistry, TheToken, TokenRoute
from ..edge import Json
from ..openapi import errors

router = APIRouter(
    prefix="/v1",
    tags=["read"],
    route_class=TokenRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden"),
)


@router.get("/heads", response_model=HeadsPage)
async def get_heads(
    registry: TheRegistry,
    token: TheToken,
    after: Annotated[Digest | None, Query()] = None,
    mark: Annotated[str | None, Query(max_length=64, pattern="^[0-9a-f]{64}$")] = None,
) -> Json:
    """Lists the heads that the token may read, at most 1000 behind an entry; none if `mark` is still the
    listing's."""
    return Json(await to_thread.run_sync(heads_listing.list_heads, registry, token, after, mark))
