"""Routes of the trust metadata: TUF's files by their names, and all that a client lacks in one answer."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Response

from cachesvc.registry import trust
from cachesvc_client.wire.protocol import TrustAnswer

from .access import SECURED, TheRegistry, TheToken, TokenRoute
from .edge import Json
from .openapi import errors

Version = Annotated[int, Query(ge=0, lt=1 << 53)]
"""Type of the version of a file; 0 if the client has none."""

router = APIRouter(
    prefix="/v1/trust",
    tags=["read"],
    route_class=TokenRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found"),
)


@router.get("/update", response_model=TrustAnswer)
async def get_update(
    registry: TheRegistry, token: TheToken, root: Version = 0, snapshot: Version = 0, targets: Version = 0
) -> Json:
    """Returns the timestamp, and the files that a client with these versions lacks."""
    return Json(await to_thread.run_sync(trust.read_update, registry, token, root, snapshot, targets))


@router.get("/{file}", response_class=Response, responses={200: {"content": {"application/json": {}}}})
async def get_file(registry: TheRegistry, token: TheToken, file: str) -> Response:
    """Returns one file of the trust metadata by TUF's name of it, such as `timestamp.json` or
    `1.root.json`."""
    data = await to_thread.run_sync(trust.read_file, registry, token, file)
    return Response(data, media_type="application/json")
