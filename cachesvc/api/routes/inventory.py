"""Routes for operators over entries and revisions: search, show, pin, quarantine, delete."""

from __future__ import annotations

from typing import Annotated, Literal

from anyio import to_thread
from fastapi import APIRouter, Query, Response

from cachesvc.index.entries.search import Built, Search
from cachesvc.registry import inventory
from cachesvc.registry.trust import provenance
from cachesvc.registry.upkeep import quarantine, retention
from cachesvc.schema.entries import (
    MAX_PAGE,
    EntryPage,
    ProvenanceRecord,
    Reason,
    RevisionDifference,
    RevisionRecord,
    Withheld,
)
from cachesvc.schema.upkeep import Stats
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag

from ..access import SECURED, AdminRoute, TheRegistry, TheToken
from ..edge import Json
from ..openapi import Completed, Word, errors

router = APIRouter(
    prefix="/v1",
    tags=["inventory"],
    route_class=AdminRoute,
    dependencies=SECURED,
    responses=errors("unauthenticated", "forbidden", "not_found"),
)

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("/entries", response_model=EntryPage)
async def get_entries(
    registry: TheRegistry,
    token: TheToken,
    namespace: Annotated[Namespace | None, Query()] = None,
    name: Annotated[ShortName | None, Query()] = None,
    tag: Annotated[Tag | None, Query()] = None,
    lane: Annotated[list[Lane] | None, Query(max_length=50)] = None,
    trunk: bool = False,
    target: Word = None,
    model: Word = None,
    gpu: Word = None,
    torch: Word = None,
    dtype: Word = None,
    shape: Word = None,
    pinned: bool = False,
    unused_since: Annotated[int | None, Query(ge=0, lt=1 << 53)] = None,
    cursor: Word = None,
    limit: Limit = MAX_PAGE,
) -> Json:
    """Searches entries, newest first, a page at a time."""
    lanes = (*(lane or ()), *([""] if trunk else []))
    search = Search(
        namespace=namespace or "*",
        lanes=lanes or None,
        name=name,
        tag=tag,
        target=target,
        built=Built(model=model, gpu=gpu, torch=torch, dtype=dtype, shape=shape),
        pinned=pinned,
        unused_since=unused_since,
    )
    return Json(await to_thread.run_sync(inventory.search_entries, registry, token, search, cursor, limit))


@router.get("/entries/{entry}/revisions", response_model=list[RevisionRecord])
async def get_revisions(registry: TheRegistry, token: TheToken, entry: Digest) -> Json:
    """Lists the revisions of an entry, newest first."""
    return Json(await to_thread.run_sync(inventory.list_revisions, registry, token, entry))


@router.delete(
    "/entries/{entry}", status_code=204, response_class=Response, responses=errors("head_conflict")
)
async def delete_entry(
    registry: TheRegistry, token: TheToken, entry: Digest, head: Annotated[Digest | None, Query()] = None
) -> Response:
    """Deletes an entry with its revisions, if `head` still is its head."""
    await to_thread.run_sync(retention.delete_entry, registry, token, entry, head)
    return Response(status_code=204)


@router.get("/digests/{kind}/{beginning}", response_model=Completed)
async def get_digest(
    registry: TheRegistry, token: TheToken, kind: Literal["entry", "revision"], beginning: str
) -> Json:
    """Completes a digest, if only one begins so."""
    digest = await to_thread.run_sync(inventory.complete, registry, token, kind, beginning)
    return Json(Completed(digest))


@router.get("/revisions/{revision}", response_model=RevisionRecord)
async def get_revision(registry: TheRegistry, token: TheToken, revision: Digest) -> Json:
    """Shows one revision."""
    return Json(await to_thread.run_sync(inventory.get_revision, registry, token, revision))


@router.get("/revisions/{revision}/envelope")
async def get_envelope(registry: TheRegistry, token: TheToken, revision: Digest) -> Json:
    """Returns the signed envelope, byte for byte."""
    return Json(await to_thread.run_sync(inventory.get_envelope, registry, token, revision))


@router.get("/revisions/{revision}/provenance", response_model=ProvenanceRecord)
async def get_provenance(registry: TheRegistry, token: TheToken, revision: Digest) -> Json:
    """Shows who built a revision, from what: the statement that was signed with it, verified again."""
    return Json(await to_thread.run_sync(provenance.show_provenance, registry, token, revision))


@router.get("/revisions/{revision}/difference/{other}", response_model=RevisionDifference)
async def get_difference(registry: TheRegistry, token: TheToken, revision: Digest, other: Digest) -> Json:
    """Compares two revisions: facts and files."""
    return Json(await to_thread.run_sync(inventory.compare_revisions, registry, token, revision, other))


@router.delete(
    "/revisions/{revision}", status_code=204, response_class=Response, responses=errors("head_conflict")
)
async def delete_revision(registry: TheRegistry, token: TheToken, revision: Digest) -> Response:
    """Deletes a revision that is no head."""
    await to_thread.run_sync(retention.delete_revision, registry, token, revision)
    return Response(status_code=204)


@router.put("/revisions/{revision}/pin", response_model=RevisionRecord)
async def put_pin(registry: TheRegistry, token: TheToken, revision: Digest, body: Reason) -> Json:
    """Keeps a revision from retention, eviction and deletion."""
    return Json(await to_thread.run_sync(retention.pin, registry, token, revision, body.why))


@router.delete("/revisions/{revision}/pin", response_model=RevisionRecord)
async def delete_pin(registry: TheRegistry, token: TheToken, revision: Digest) -> Json:
    """Unpins a revision."""
    return Json(await to_thread.run_sync(retention.unpin, registry, token, revision))


@router.put("/revisions/{revision}/quarantine", response_model=RevisionRecord)
async def put_quarantine(
    registry: TheRegistry,
    token: TheToken,
    revision: Digest,
    body: Reason,
    namespace: Annotated[Namespace | None, Query()] = None,
) -> Json:
    """Offers a revision to no one, on every replica within 5 s. `namespace`: that of a
    revision that is not here any more."""
    return Json(await to_thread.run_sync(quarantine.withdraw, registry, token, revision, body.why, namespace))


@router.delete("/revisions/{revision}/quarantine", status_code=204, response_class=Response)
async def delete_quarantine(registry: TheRegistry, token: TheToken, revision: Digest) -> Response:
    """Offers a revision again, where an operator or reports of inert installs withheld it."""
    await to_thread.run_sync(quarantine.release, registry, token, revision)
    return Response(status_code=204)


@router.get("/quarantine", response_model=list[Withheld])
async def get_quarantine(registry: TheRegistry, token: TheToken) -> Json:
    """Lists what is not offered, to anybody or to some environments."""
    return Json(await to_thread.run_sync(inventory.list_withheld, registry, token))


@router.get("/stats", response_model=Stats)
async def get_stats(
    registry: TheRegistry,
    token: TheToken,
    namespace: Annotated[Namespace | None, Query()] = None,
    top: Annotated[int, Query(ge=0, le=inventory.RANKED)] = 10,
) -> Json:
    """Returns sums, and the entries that are first by disuse, by bytes and by seconds saved."""
    return Json(await to_thread.run_sync(inventory.stats, registry, token, namespace or "*", top))
