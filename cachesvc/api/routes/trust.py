"""Routes of the trust metadata: TUF's files by their names, all that a client lacks in one answer, and what
an operator signs offline."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Response

from cachesvc.registry.trust import changes, metadata
from cachesvc.schema.trust_changes import KeysRequest, RootRequest, TargetsRequest, TrustState
from cachesvc_client.wire.requests.protocol import TrustAnswer

from ..access import SECURED, AdminRoute, TheRegistry, TheToken, TokenRoute
from ..edge import Json
from ..openapi import errors

Version = Annotated[int, Query(ge=0, lt=1 << 53)]
"""Type of the version of a file; 0 if the client has none."""

router = APIRouter(
    prefix="/v1/trust",
    tags=["read"],
    route_class=TokenRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found"),
)

admin_router = APIRouter(
    prefix="/v1/trust",
    tags=["admin"],
    route_class=AdminRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found", "head_conflict", "untrusted"),
)


@router.get("/update", response_model=TrustAnswer)
async def get_update(
    registry: TheRegistry, token: TheToken, root: Version = 0, snapshot: Version = 0, targets: Version = 0
) -> Json:
    """Returns the timestamp, and the files that a client with these versions lacks."""
    return Json(await to_thread.run_sync(metadata.read_update, registry, token, root, snapshot, targets))


@router.get("/state", response_model=TrustState)
async def get_state(registry: TheRegistry, token: TheToken) -> Json:
    """Returns which roles the registry signs itself, and the online key that the next root is to name."""
    return Json(await to_thread.run_sync(changes.read_state, registry, token))


@router.get("/{file}", response_class=Response, responses={200: {"content": {"application/json": {}}}})
async def get_file(registry: TheRegistry, token: TheToken, file: str) -> Response:
    """Returns one file of the trust metadata by TUF's name of it, such as `timestamp.json` or
    `1.root.json`."""
    data = await to_thread.run_sync(metadata.read_file, registry, token, file)
    return Response(data, media_type="application/json")


@admin_router.put("/root", response_model=TrustState)
async def put_root(registry: TheRegistry, token: TheToken, body: RootRequest) -> Json:
    """Stores the next root, perhaps with new targets, if enough of the operator's keys signed them. Someone
    who was faster is answered with 409."""
    return Json(await to_thread.run_sync(changes.put_root, registry, token, body))


@admin_router.put("/targets", response_model=TrustState)
async def put_targets(registry: TheRegistry, token: TheToken, body: TargetsRequest) -> Json:
    """Stores the next targets, if enough keys that the root names signed them. Someone who was faster is
    answered with 409."""
    return Json(await to_thread.run_sync(changes.put_targets, registry, token, body))


@admin_router.post("/keys", response_model=TrustState)
async def post_keys(registry: TheRegistry, token: TheToken, body: KeysRequest) -> Json:
    """Makes new keys of the registry's own; a registry that signs its own root signs the next one."""
    return Json(await to_thread.run_sync(changes.make_keys, registry, token, body))
