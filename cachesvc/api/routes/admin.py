"""Routes for operators: tokens, signers, namespaces, the audit log, collection and fsck."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Response

from cachesvc.registry import audit
from cachesvc.registry.access import tokens
from cachesvc.registry.trust import provenance, signers
from cachesvc.registry.upkeep import fsck, gc, retention
from cachesvc.schema.access import AuditPage, Expiry, Rotation, SignerRecord, TokenAnswer, TokenRequest
from cachesvc.schema.entries import MAX_PAGE
from cachesvc.schema.namespaces import NamespaceRecord, Policy, RequireRequest
from cachesvc.schema.revocations import Revocation, RevocationRequest, RevokedSigner
from cachesvc.schema.upkeep import CollectPlan, Finding, FsckPage, Repaired
from cachesvc_client.wire.names import Namespace

from ..access import SECURED, AdminRoute, TheRegistry, TheToken
from ..edge import Json
from ..openapi import Word, errors

router = APIRouter(
    prefix="/v1",
    tags=["admin"],
    route_class=AdminRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found"),
)

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("/tokens", response_model=list[TokenAnswer])
async def get_tokens(registry: TheRegistry, token: TheToken, revoked: bool = False) -> Json:
    """Lists the tokens that the admin may see; never their secrets."""
    return Json(await to_thread.run_sync(lambda: tokens.list_tokens(registry, token, revoked=revoked)))


@router.post("/tokens", response_model=TokenAnswer, status_code=201)
async def post_token(registry: TheRegistry, token: TheToken, body: TokenRequest) -> Json:
    """Creates a token; its secret is in this answer only."""
    created = await to_thread.run_sync(tokens.create_token, registry, token, body)
    answer = Json(created, 201)
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.put("/tokens/{token_id}/expiry", response_model=TokenAnswer)
async def put_expiry(registry: TheRegistry, token: TheToken, token_id: str, body: Expiry) -> Json:
    """Sets when a token ends: some days from now (0: at once), or never. That holds everywhere within 5 s."""
    return Json(await to_thread.run_sync(tokens.expire_token, registry, token, token_id, body))


@router.post("/tokens/{token_id}/rotation", response_model=TokenAnswer)
async def post_rotation(registry: TheRegistry, token: TheToken, token_id: str, body: Rotation) -> Json:
    """Gives a token a new secret, which is in this answer only. The one that it had stays valid for the
    overlap."""
    rotated = await to_thread.run_sync(tokens.rotate_token, registry, token, token_id, body)
    answer = Json(rotated)
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.delete("/tokens/{token_id}", status_code=204, response_class=Response)
async def delete_token(registry: TheRegistry, token: TheToken, token_id: str) -> Response:
    """Revokes a token; it is refused everywhere within 5 s."""
    await to_thread.run_sync(tokens.revoke_token, registry, token, token_id)
    return Response(status_code=204)


@router.get("/signers", response_model=list[SignerRecord])
async def get_signers(registry: TheRegistry, token: TheToken) -> Json:
    """Lists the keys whose signatures the token's namespace accepts."""
    return Json(await to_thread.run_sync(signers.list_signers, registry, token))


@router.post("/signers", response_model=SignerRecord, status_code=201)
async def post_signer(
    registry: TheRegistry, token: TheToken, body: SignerRecord, again: bool = False
) -> Json:
    """Accepts a key's signatures in a namespace. A key that was revoked is refused, unless `again` is true:
    its revocation ends then."""
    added = await to_thread.run_sync(lambda: signers.add_signer(registry, token, body, again=again))
    return Json(added, 201)


@router.delete("/signers", status_code=204, response_class=Response)
async def delete_signer(registry: TheRegistry, token: TheToken, namespace: str, key: str) -> Response:
    """Removes a key from the signers of a namespace."""
    await to_thread.run_sync(signers.remove_signer, registry, token, namespace, key)
    return Response(status_code=204)


@router.get("/revocations", response_model=list[RevokedSigner])
async def get_revocations(registry: TheRegistry, token: TheToken) -> Json:
    """Lists the keys that were revoked, as far as the token's namespace refuses them."""
    return Json(await to_thread.run_sync(signers.list_revoked, registry, token))


@router.post("/revocations", response_model=Revocation)
async def post_revocation(registry: TheRegistry, token: TheToken, body: RevocationRequest) -> Json:
    """Revokes a key: no commit accepts it, and what it signed is offered to no one, on every replica within
    5 s."""
    return Json(await to_thread.run_sync(signers.revoke_signer, registry, token, body))


@router.post("/revocations/plan", response_model=Revocation)
async def post_revocation_plan(registry: TheRegistry, token: TheToken, body: RevocationRequest) -> Json:
    """Plans a revocation: which revisions it withholds, and which nodes reported some of them. Changes
    nothing."""
    return Json(await to_thread.run_sync(signers.plan_revocation, registry, token, body))


@router.get("/namespaces", response_model=list[NamespaceRecord])
async def get_namespaces(registry: TheRegistry, token: TheToken) -> Json:
    """Lists namespaces, with what they hold and keep."""
    return Json(await to_thread.run_sync(retention.list_namespaces, registry, token))


@router.put("/namespaces/{namespace}/policy", response_model=NamespaceRecord)
async def put_policy(registry: TheRegistry, token: TheToken, namespace: Namespace, body: Policy) -> Json:
    """Replaces the policy of a namespace; the next collection applies it."""
    return Json(await to_thread.run_sync(retention.set_policy, registry, token, namespace, body))


@router.put("/namespaces/{namespace}/require", response_model=RequireRequest)
async def put_require(
    registry: TheRegistry, token: TheToken, namespace: Namespace, body: RequireRequest
) -> Json:
    """Sets who must have built what the trunk of a namespace offers; everywhere within 5 s."""
    return Json(await to_thread.run_sync(provenance.set_requirement, registry, token, namespace, body))


@router.get("/audit", response_model=AuditPage)
async def get_audit(
    registry: TheRegistry,
    token: TheToken,
    cursor: Word = None,
    limit: Limit = MAX_PAGE,
    action: Word = None,
    subject: Word = None,
) -> Json:
    """Lists what operators did, newest first."""
    page = await to_thread.run_sync(audit.audit_page, registry, token, cursor, limit, action, subject)
    return Json(page)


@router.get("/gc", response_model=CollectPlan)
async def get_gc(registry: TheRegistry, token: TheToken) -> Json:
    """Plans a collection: what it would remove now, and why."""
    return Json(await to_thread.run_sync(gc.plan, registry, token))


@router.post("/gc", response_model=gc.Collected)
async def post_gc(registry: TheRegistry, token: TheToken) -> Json:
    """Runs retention and collection now."""
    return Json(await to_thread.run_sync(gc.collect, registry, token))


@router.post("/fsck", response_model=FsckPage)
async def post_fsck(registry: TheRegistry, token: TheToken, cursor: Word = None, deep: bool = False) -> Json:
    """Checks one page of the index against the store; changes nothing."""
    return Json(await to_thread.run_sync(fsck.check, registry, token, cursor, deep))


@router.post("/fsck/repair", response_model=Repaired)
async def post_repair(registry: TheRegistry, token: TheToken, body: Finding) -> Json:
    """Repairs one finding, if it still holds."""
    return Json(await to_thread.run_sync(fsck.repair, registry, token, body))
