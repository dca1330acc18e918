"""Tokens, signers, collection."""

from __future__ import annotations

from anyio import to_thread
from fastapi import APIRouter, Response

from cachesvc.registry import gc, reports, tokens
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.protocol import SignerRecord, TokenAnswer, TokenRequest

from .access import SECURED, TheRegistry, TheToken, TokenRoute
from .answers import errors
from .edge import Json

router = APIRouter(
    prefix="/v1",
    tags=["admin"],
    route_class=TokenRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found"),
)


@router.get("/tokens", response_model=list[TokenAnswer])
async def get_tokens(registry: TheRegistry, token: TheToken) -> Json:
    """The tokens that the admin may see; never their secrets."""
    return Json(await to_thread.run_sync(tokens.list_tokens, registry, token))


@router.post("/tokens", response_model=TokenAnswer, status_code=201)
async def post_token(registry: TheRegistry, token: TheToken, body: TokenRequest) -> Json:
    """A new token; its secret is in this answer only."""
    made = await to_thread.run_sync(tokens.create_token, registry, token, body)
    answer = Json(made, 201)
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.delete("/tokens/{token_id}", status_code=204, response_class=Response)
async def delete_token(registry: TheRegistry, token: TheToken, token_id: str) -> Response:
    """Revokes a token; it is refused everywhere within 5 s."""
    await to_thread.run_sync(tokens.revoke_token, registry, token, token_id)
    return Response(status_code=204)


@router.get("/signers", response_model=list[SignerRecord])
async def get_signers(registry: TheRegistry, token: TheToken) -> Json:
    """The keys whose signatures are accepted, as far as the token's namespace goes."""
    return Json(await to_thread.run_sync(tokens.list_signers, registry, token))


@router.post("/signers", response_model=SignerRecord, status_code=201)
async def post_signer(registry: TheRegistry, token: TheToken, body: SignerRecord) -> Json:
    """Accepts a key's signatures in a namespace."""
    return Json(await to_thread.run_sync(tokens.add_signer, registry, token, body), 201)


@router.delete("/revisions/{revision}/quarantine", status_code=204, response_class=Response)
async def delete_quarantine(registry: TheRegistry, token: TheToken, revision: Digest) -> Response:
    """Offers a revision again in every environment that it was reported inert from."""
    await to_thread.run_sync(reports.lift, registry, token, revision)
    return Response(status_code=204)


@router.post("/gc", response_model=gc.Collected)
async def post_gc(registry: TheRegistry, token: TheToken) -> Json:
    """Retention and collection, now."""
    return Json(await to_thread.run_sync(gc.collect, registry, token))
