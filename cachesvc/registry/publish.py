"""Publish a revision: begin, receive, commit; or a bundle, which is all three in one request.

A crash leaves nothing that a client can see; GC removes the rest.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cachesvc.domain.access import Action, Role, Token, demand
from cachesvc.domain.revisions import advances
from cachesvc.index.entries.entries import Published
from cachesvc.index.packs.uploads import Upload
from cachesvc.index.unit import Unit
from cachesvc_client.bundle.file import split_bundle
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    Corrupt,
    InvalidRequest,
    LeaseLost,
    NotFound,
    TooLarge,
    Untrusted,
)
from cachesvc_client.wire.manifest.ancestors import Ancestor
from cachesvc_client.wire.requests.protocol import (
    BundleRequest,
    CommitAnswer,
    CommitRequest,
    StoredAnswer,
    UploadAnswer,
    UploadRequest,
)

from . import audit, claims, webhooks
from .answers import forget_answers
from .context import Registry
from .intake import (
    BEGIN_AGAIN,
    Intake,
    demand_lease,
    end_lease,
    extend_object,
    extend_upload,
    new_key,
    record_received,
)
from .trust.acceptance import accepted_signers, verify
from .trust.provenance import demand_required, demand_vouched
from .upkeep.quarantine import demand_line, demand_offerable
from .upkeep.quota import add_pending, demand_room

_ID = re.compile(r"u-[0-9a-f]{32}")


def begin(registry: Registry, token: Token, request: UploadRequest) -> UploadAnswer:
    """Begins an upload and takes its lease.

    Raises ``Forbidden``, ``TooLarge``, and ``StorageFull`` above the namespace's quota.
    """
    demand(token, Action.write, request.namespace, request.lane)
    registry.packs.reserve.demand()
    upload = _new_upload(registry, token, request, request.size)
    with registry.index.write() as unit:
        quota = unit.namespaces.quota(request.namespace)
        demand_room(registry, unit, request.namespace, request.size, quota)
        unit.uploads.add(upload)
    return UploadAnswer(upload.upload, f"/v1/uploads/{upload.upload}/pack", upload.leased_until)


def receive(
    registry: Registry, token: Token, upload_id: str, chunks: Iterable[bytes], announced: int | None = None
) -> StoredAnswer:
    """Stores the pack's bytes under a new key and hashes them as they pass. A client may try again.

    ``announced``: the length that the client stated, in bytes. It ends a transfer that is too large before it
    begins, and is not trusted.
    Raises ``TooLarge`` past the declared size, ``InvalidRequest`` short of it, ``LeaseLost``, and
    ``StorageFull`` if the publisher's pending bytes exceed what the namespace's quota leaves.
    """
    with registry.index.read() as unit:
        upload = _own_upload(unit, token, upload_id)
        quota = unit.namespaces.quota(upload.namespace)
    demand_lease(registry, upload)
    registry.packs.reserve.demand()
    if announced is not None and announced > upload.size:
        raise TooLarge(f"a body of {announced} bytes; the upload declared {upload.size}", BEGIN_AGAIN)
    key = new_key(upload)
    add_pending(registry, upload, key, registry.now + registry.limits.lease_seconds, quota)
    intake = Intake(
        chunks, upload.size, extend=lambda: extend_upload(registry, upload, key), clock=registry.clock
    )
    try:
        registry.packs.blobs.put(key, intake)
        record_received(registry, upload, key, intake.digest, intake.size)
    except BaseException:
        end_lease(registry, key)
        raise
    return StoredAnswer(intake.digest, intake.size)


def commit(registry: Registry, token: Token, upload_id: str, request: CommitRequest) -> CommitAnswer:
    """Makes the uploaded pack the entry's head, in one transaction, or changes nothing.

    A second commit of the head is a success, so that a client whose answer was lost can send it again. The
    claim that the request shows must be current, or nothing is changed; processes that wait for a claim that
    this revision serves are woken. Raises ``HeadConflict``, ``ClaimLost``, ``LeaseLost``, ``Corrupt``,
    ``Untrusted``, ``InvalidRequest``, ``StorageFull``.
    """
    with registry.index.read() as unit:
        upload = _own_upload(unit, token, upload_id)
        trusted, _ = accepted_signers(unit, upload.namespace)
    verified = verify(registry, upload, request.envelope.encode(errors="replace"), trusted)
    return _commit(registry, token, upload, verified, request)


def bundle(registry: Registry, token: Token, request: BundleRequest, chunks: Iterable[bytes]) -> CommitAnswer:
    """Does what :func:`begin`, :func:`receive` and :func:`commit` do, for a bundle that comes in one piece.

    A bundle without an accepted signature is refused before its pack is stored. The upload has no row,
    because no other request names it: the lease is that of the pack's object. Raises what the three raise.
    """
    demand(token, Action.write, request.namespace, request.lane)
    registry.packs.reserve.demand()
    envelope, pack = split_bundle(chunks)
    with registry.index.read() as unit:
        trusted, quota = accepted_signers(unit, request.namespace)
    verified = verify(registry, request, envelope, trusted)
    upload = _new_upload(registry, token, request, verified.manifest.pack.size)
    key = new_key(upload)
    add_pending(registry, upload, key, upload.leased_until, quota)
    intake = Intake(pack, upload.size, extend=lambda: extend_object(registry, key), clock=registry.clock)
    created = False
    try:
        registry.packs.blobs.put(key, intake)
        received = intake.digest, intake.size
        answer = _commit(registry, token, replace(upload, key=key), verified, request, received)
        created = answer.created
    finally:
        if not created:
            end_lease(registry, key)
    return answer


def find_upload(registry: Registry, token: Token, upload_id: str) -> Upload:
    """Return an upload of the token. Raise ``NotFound``."""
    with registry.index.read() as unit:
        return _own_upload(unit, token, upload_id)


def abort(registry: Registry, token: Token, upload_id: str) -> None:
    """Ends an upload and its lease. GC collects the received bytes; a committed revision stays."""
    with registry.index.write() as unit:
        upload = _own_upload(unit, token, upload_id)
        unit.uploads.drop(upload_id)
        if upload.key is not None:
            unit.objects.lease(upload.key, 0)


def _new_upload(
    registry: Registry, token: Token, request: UploadRequest | BundleRequest, size: int
) -> Upload:
    if size <= 0:
        raise InvalidRequest(f"size: {size}; a pack has at least one byte")
    if size > registry.limits.pack_bytes:
        raise TooLarge(f"a pack of {size} bytes; this registry takes {registry.limits.pack_bytes}")
    return Upload(
        upload="u-" + secrets.token_hex(16),
        token=token.token,
        namespace=request.namespace,
        name=request.name,
        lane=request.lane,
        size=size,
        leased_until=registry.now + registry.limits.lease_seconds,
        started=registry.now,
    )


def _own_upload(unit: Unit, token: Token, upload_id: str) -> Upload:
    upload = unit.uploads.get(upload_id) if _ID.fullmatch(upload_id) else None
    if upload is None or (upload.token != token.token and token.role is not Role.admin):
        raise NotFound(f"upload {upload_id[:40]!r} does not exist, or its lease is long over", BEGIN_AGAIN)
    demand(token, Action.write, upload.namespace, upload.lane)
    return upload


def _commit(
    registry: Registry,
    token: Token,
    upload: Upload,
    verified: Accepted,
    request: CommitRequest | BundleRequest,
    received: tuple[Digest, int] | None = None,
) -> CommitAnswer:
    """Runs the transaction of a commit.

    ``received``: digest and size of the bytes under the upload's key, if the index does not know them yet.
    """
    manifest = verified.manifest
    served: Sequence[Digest] = ()
    with registry.index.write() as unit:
        unit.withdrawals.lock(upload.namespace, alone=False)
        head = unit.entries.lock(manifest, registry.now)
        # The first commit of this revision gave the claim back, so a second one shows an old claim.
        if request.claim is not None and (head is None or head.revision != verified.revision):
            claims.demand_claim(unit, upload, request.claim)
        created = advances(
            head,
            expected=request.head,
            revision=verified.revision,
            sequence=manifest.statement.sequence,
        )
        if created:
            demand_offerable(unit, verified)
            ancestors = unit.ancestry.of(verified.manifest)
            demand_vouched(unit, token, verified, request.deed)
            demand_required(unit, verified)
            published = _record(
                registry, unit, token, upload, verified, ancestors, received, repeats=request.deed is not None
            )
            demand_line(unit, verified)
            webhooks.announce_publication(registry, unit, manifest, published, request.deed)
            if request.deed:
                _note_in_audit(registry, unit, token, verified, request)
            served = claims.fulfil(unit, manifest, request.claim)
    forget_answers(registry, upload.namespace)
    claims.wake(registry, served)
    return CommitAnswer(manifest.entry, verified.revision, created)


def _record(
    registry: Registry,
    unit: Unit,
    token: Token,
    upload: Upload,
    verified: Accepted,
    ancestors: Sequence[Ancestor],
    received: tuple[Digest, int] | None,
    *,
    repeats: bool,
) -> Published:
    """Record the revision and make it the head. ``repeats``: an operator's tag or rollback repeats the bytes
    of another revision; what a builder sends again may replace a pack that the store has altered."""
    manifest = verified.manifest
    if received is None:
        demand_lease(registry, upload)
    if upload.key is None:
        raise InvalidRequest("the pack was not uploaded", f"PUT /v1/uploads/{upload.upload}/pack first")
    # First the lock on the object's row, so that GC waits or has been: see Objects.mark.
    stored = unit.objects.hold(upload.key, registry.now + registry.limits.grace_seconds, received)
    if stored is None:
        raise LeaseLost(f"what upload {upload.upload} received was collected", BEGIN_AGAIN)
    if stored != (manifest.pack.digest, manifest.pack.size):
        raise Corrupt("the uploaded pack is not the one that the manifest names", BEGIN_AGAIN)
    signers, quota = unit.signers.accepted(upload.namespace)
    if verified.signer not in signers:
        raise Untrusted(f"key {verified.signer.short} may no longer sign for {upload.namespace}")
    # What repeats a pack of the namespace names the object that is there; the received one is collected.
    pack, until = manifest.pack, registry.now + registry.limits.grace_seconds
    same = unit.objects.hold_same(upload.namespace, pack.digest, pack.size, until) if repeats else None
    demand_room(registry, unit, upload.namespace, 0 if same else pack.size, quota)
    provenance = verified.provenance
    published = Published(
        revision=verified.revision,
        envelope=verified.envelope,
        signer=verified.signer,
        pack_key=same or upload.key,
        published=registry.now,
        published_by=token.token,
        builder=provenance.builder if provenance else None,
        source_ref=(provenance.ref or None) if provenance else None,
        ancestors=ancestors,
    )
    unit.entries.advance(manifest, published)
    return published


def _note_in_audit(
    registry: Registry,
    unit: Unit,
    token: Token,
    verified: Accepted,
    request: CommitRequest | BundleRequest,
) -> None:
    manifest = verified.manifest
    statement = manifest.statement
    audit.note(
        registry,
        unit,
        token,
        f"revision.{request.deed}",
        statement.namespace,
        verified.revision,
        name=statement.full_name,
        target=statement.target,
        lane=statement.lane,
        over=request.head,
        bytes_of=manifest.provenance.get("bytes_of"),
        builder=verified.provenance.builder if verified.provenance else None,
        signer=verified.signer,
    )
