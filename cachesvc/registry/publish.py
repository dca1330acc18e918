"""Publishing: begin, receive, commit; or a bundle, which is all three in one request.

A crash anywhere leaves nothing that is visible, and GC the rest.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from cachesvc.domain.access import Action, Role, Token, demand
from cachesvc.domain.revisions import advances
from cachesvc.index.entries import Published
from cachesvc.index.unit import Unit
from cachesvc.index.uploads import Upload
from cachesvc_client.bundle.check import CLOCK_SKEW_SECONDS, ExpectedStatement, Verified, check_envelope
from cachesvc_client.bundle.file import split_bundle
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Corrupt,
    InvalidRequest,
    LeaseLost,
    NotFound,
    StorageFull,
    TooLarge,
    Untrusted,
)
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.protocol import (
    BundleRequest,
    CommitAnswer,
    CommitRequest,
    StoredAnswer,
    UploadAnswer,
    UploadRequest,
)
from cachesvc_client.wire.records import Manifest

from . import audit, claims
from .context import Registry
from .resolve import forget

_log = logging.getLogger("cachesvc.publish")

EXTEND_SECONDS = 20
"""While bytes arrive, the lease is extended this often; leases are at least a minute."""

MAX_FACTS_BYTES = 64 << 10
"""Fingerprint and measured seconds are read for every candidate of a resolve."""

_ID = re.compile(r"u-[0-9a-f]{32}")
_AGAIN = "begin the upload again"


def begin(registry: Registry, token: Token, request: UploadRequest) -> UploadAnswer:
    """Takes a lease. Raises ``Forbidden``, ``TooLarge``, ``StorageFull`` above the namespace's quota."""
    demand(token, Action.write, request.namespace, request.lane)
    upload = _new(registry, token, request, request.size)
    with registry.index.write() as unit:
        quota = unit.namespaces.quota(request.namespace)
        _demand_room(registry, unit, request.namespace, request.size, quota)
        unit.uploads.add(upload)
    return UploadAnswer(upload.upload, f"/v1/uploads/{upload.upload}/pack", upload.leased_until)


def receive(
    registry: Registry, token: Token, upload_id: str, chunks: Iterable[bytes], announced: int | None = None
) -> StoredAnswer:
    """Stores the pack's bytes under a new key, hashed as they pass. May be tried again after a failure.

    ``announced``: the body's length, if the client said so; it saves a doomed transfer and is not trusted.
    Raises ``TooLarge`` past the declared size, ``InvalidRequest`` short of it, ``LeaseLost``.
    """
    with registry.index.read() as unit:
        upload = _own(unit, token, upload_id)
    _demand_lease(registry, upload)
    if announced is not None and announced > upload.size:
        raise TooLarge(f"a body of {announced} bytes; the upload declared {upload.size}", _AGAIN)
    key = _new_key(upload)
    with registry.index.write_once() as unit:
        unit.objects.add(key, registry.now + registry.limits.lease_seconds)
    intake = _Intake(chunks, upload.size, lambda: _extend(registry, upload, key), registry.clock)
    try:
        registry.blobs.put(key, intake)
        _hold(registry, upload, key, intake.digest, intake.size)
    except BaseException:
        _let_go(registry, key)
        raise
    return StoredAnswer(intake.digest, intake.size)


def commit(registry: Registry, token: Token, upload_id: str, request: CommitRequest) -> CommitAnswer:
    """Makes the uploaded pack the entry's head, in one transaction, or changes nothing.

    Committing what is the head already is a success, so that a lost answer can be asked for again.
    A claim that is shown must be current, or nothing is changed; who waits for one that this revision serves
    is told. Raises ``HeadConflict``, ``ClaimLost``, ``LeaseLost``, ``Corrupt``, ``Untrusted``,
    ``InvalidRequest``, ``StorageFull``.
    """
    with registry.index.read() as unit:
        upload = _own(unit, token, upload_id)
        trusted, _ = _accepted(unit, upload.namespace)
    verified = _verified(registry, upload, request.envelope.encode(errors="replace"), trusted)
    return _commit(registry, token, upload, verified, request)


def bundle(registry: Registry, token: Token, request: BundleRequest, chunks: Iterable[bytes]) -> CommitAnswer:
    """:func:`begin`, :func:`receive` and :func:`commit` of a bundle that comes in one piece, with their
    guarantees; what is not signed by a key that may sign there is refused before its pack is stored.

    Raises what they raise. An upload that nobody names needs no row: the pack's object holds its lease.
    """
    demand(token, Action.write, request.namespace, request.lane)
    envelope, pack = split_bundle(chunks)
    with registry.index.read() as unit:
        trusted, quota = _accepted(unit, request.namespace)
    verified = _verified(registry, request, envelope, trusted)
    upload = _new(registry, token, request, verified.manifest.pack.size)
    if _quota(registry, quota) is not None:
        with registry.index.read() as unit:
            _demand_room(registry, unit, upload.namespace, upload.size, quota)
    key = _new_key(upload)
    with registry.index.write_once() as unit:
        unit.objects.add(key, upload.leased_until)
    intake = _Intake(pack, upload.size, lambda: _extend_object(registry, key), registry.clock)
    created = False
    try:
        registry.blobs.put(key, intake)
        received = intake.digest, intake.size
        answer = _commit(registry, token, replace(upload, key=key), verified, request, received)
        created = answer.created
    finally:
        if not created:
            _let_go(registry, key)
    return answer


def abort(registry: Registry, token: Token, upload_id: str) -> None:
    """Gives the lease back; what was received is collected. What was committed stays."""
    with registry.index.write() as unit:
        upload = _own(unit, token, upload_id)
        unit.uploads.drop(upload_id)
        if upload.key is not None:
            unit.objects.lease(upload.key, 0)


def _new(registry: Registry, token: Token, request: UploadRequest | BundleRequest, size: int) -> Upload:
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
    )


def _new_key(upload: Upload) -> str:
    return f"packs/{upload.upload}-{secrets.token_hex(4)}"


def _let_go(registry: Registry, key: str) -> None:
    """A courtesy to GC; if it fails, the lease runs out by itself. What a revision names stays."""
    with suppress(CacheSvcError), registry.index.write_once() as unit:
        unit.objects.lease(key, 0)


def _own(unit: Unit, token: Token, upload_id: str) -> Upload:
    upload = unit.uploads.get(upload_id) if _ID.fullmatch(upload_id) else None
    if upload is None or (upload.token != token.token and token.role is not Role.admin):
        raise NotFound(f"upload {upload_id[:40]!r} does not exist, or its lease is long over", _AGAIN)
    demand(token, Action.write, upload.namespace, upload.lane)
    return upload


def _demand_lease(registry: Registry, upload: Upload) -> None:
    if upload.leased_until <= registry.clock():
        raise LeaseLost(f"the lease of upload {upload.upload} is over", _AGAIN)


def _demand_room(registry: Registry, unit: Unit, namespace: Namespace, size: int, own: int | None) -> None:
    """Begin saves a doomed transfer by it; in a commit's transaction it holds: publishers take turns.

    ``own``: the quota of the namespace's policy, a moment ago."""
    if _quota(registry, own) is None:
        return
    quota = _quota(registry, unit.namespaces.quota(namespace, lock=True))
    held = unit.namespaces.bytes(namespace)
    if quota is not None and held + size > quota:
        raise StorageFull(
            f"namespace {namespace} holds {held} of the {quota} bytes of its quota; this pack has {size}",
            "an admin makes room: cachesvc admin entries delete, gc, or namespaces set --quota",
        )


def _quota(registry: Registry, own: int | None) -> int | None:
    return registry.limits.quota_bytes if own is None else own


def _extend(registry: Registry, upload: Upload, key: str) -> None:
    until = registry.now + registry.limits.lease_seconds
    with registry.index.write() as unit:
        if not (unit.uploads.lease(upload.upload, until) and unit.objects.lease(key, until)):
            raise LeaseLost(f"upload {upload.upload} was ended while it was received", _AGAIN)


def _extend_object(registry: Registry, key: str) -> None:
    with registry.index.write_once() as unit:
        if not unit.objects.lease(key, registry.now + registry.limits.lease_seconds):
            raise LeaseLost("the bundle was collected while it was received", _AGAIN)


def _hold(registry: Registry, upload: Upload, key: str, digest: Digest, size: int) -> None:
    until = registry.now + registry.limits.lease_seconds
    with registry.index.write() as unit:
        current = unit.uploads.get(upload.upload)
        if current is None or not unit.objects.received(key, digest, size, until):
            raise LeaseLost(f"upload {upload.upload} was ended while it was received", _AGAIN)
        unit.uploads.lease(upload.upload, until)
        if unit.uploads.hold(upload.upload, key) or current.key is None:
            return
        if unit.objects.content(current.key) != (digest, size):
            raise InvalidRequest(f"upload {upload.upload} holds other bytes already", _AGAIN)
        # A repeated transfer: the first copy stays, and lives as long as this one would have.
        unit.objects.lease(current.key, until)
        unit.objects.lease(key, 0)


def _accepted(unit: Unit, namespace: Namespace) -> tuple[list[PublicKey], int | None]:
    """Whose signatures count there, and the quota of its policy. Raises ``Untrusted`` if nobody's do."""
    texts, quota = unit.signers.accepted(namespace)
    keys = [key for text in texts if (key := _usable(text, namespace)) is not None]
    if not keys:
        raise Untrusted(
            f"no {'usable ' if texts else ''}signer is registered for namespace {namespace}",
            "an admin adds one: cachesvc admin signers add",
        )
    return keys, quota


def _usable(text: str, namespace: Namespace) -> PublicKey | None:
    """Answers the key of a stored signer; ``None``, with a warning, for one that this version does not accept
    and an older version stored."""
    try:
        return PublicKey(text)
    except ValueError as error:
        _log.warning(
            "a signer of namespace %s is ignored: %s; remove it: cachesvc admin signers remove",
            namespace,
            error,
        )
        return None


def _verified(
    registry: Registry, place: Upload | BundleRequest, envelope: bytes, trusted: list[PublicKey]
) -> Verified:
    wanted = ExpectedStatement(place.namespace, place.name, None, place.lane)
    verified = check_envelope(
        envelope,
        trusted=trusted,
        expected=wanted,
        now=registry.clock(),
        trust_hint=f"an admin accepts a key with: cachesvc admin signers add KEY -n {place.namespace}",
    )
    statement = verified.manifest.statement
    if statement.lane != place.lane:
        raise InvalidRequest(
            f"signed for {statement.lane or 'the trunk'}, uploaded to {place.lane or 'the trunk'}",
            "sign for the lane that the upload names",
        )
    _check_bounds(verified.manifest)
    ahead = statement.sequence / 1000 - registry.clock()
    if ahead > CLOCK_SKEW_SECONDS:
        raise InvalidRequest(
            f"sequence {statement.sequence} is {int(ahead)} s in the future; it is milliseconds of UTC",
            "set the signing machine's clock",
        )
    return verified


def _check_bounds(manifest: Manifest) -> None:
    """What the index keeps beside the envelope can be kept, and written again."""
    if manifest.statement.expires is not None and not 0 < manifest.statement.expires < 1 << 53:
        raise InvalidRequest("manifest.statement.expires: out of range; it is seconds of UTC")
    try:
        size = len(codec.canonical([manifest.fingerprint, manifest.measured]))
    except ValueError as error:
        raise InvalidRequest(f"manifest.fingerprint: {error}"[:200]) from None
    if size > MAX_FACTS_BYTES:
        raise InvalidRequest(f"manifest.fingerprint and measured: more than {MAX_FACTS_BYTES} bytes")


def _commit(
    registry: Registry,
    token: Token,
    upload: Upload,
    verified: Verified,
    request: CommitRequest | BundleRequest,
    received: tuple[Digest, int] | None = None,
) -> CommitAnswer:
    """The transaction. ``received``: what is under the upload's key, if the index does not know it yet."""
    manifest = verified.manifest
    served: Sequence[Digest] = ()
    with registry.index.write() as unit:
        head = unit.entries.lock(manifest, registry.now)
        # Not of what is committed already: that gave the claim back.
        if request.claim is not None and (head is None or head.revision != verified.revision):
            claims.demand_claim(unit, upload, request.claim)
        created = advances(
            head,
            expected=request.head,
            revision=verified.revision,
            sequence=manifest.statement.sequence,
        )
        if created:
            _record(registry, unit, token, upload, verified, received)
            if request.deed:
                _note(registry, unit, token, verified, request)
            served = claims.fulfil(unit, manifest, request.claim)
    forget(registry, upload.namespace)
    claims.wake(registry, served)
    return CommitAnswer(manifest.entry, verified.revision, created)


def _record(
    registry: Registry,
    unit: Unit,
    token: Token,
    upload: Upload,
    verified: Verified,
    received: tuple[Digest, int] | None = None,
) -> None:
    manifest = verified.manifest
    if received is None:
        _demand_lease(registry, upload)
    if upload.key is None:
        raise InvalidRequest("the pack was not uploaded", f"PUT /v1/uploads/{upload.upload}/pack first")
    # First of all the lock on the object's row, past GC: see Objects.mark.
    held = unit.objects.hold(upload.key, registry.now + registry.limits.grace_seconds, received)
    if held is None:
        raise LeaseLost(f"what upload {upload.upload} received was collected", _AGAIN)
    if held != (manifest.pack.digest, manifest.pack.size):
        raise Corrupt("the uploaded pack is not the one that the manifest names", _AGAIN)
    signers, quota = unit.signers.accepted(upload.namespace)
    if verified.signer not in signers:
        raise Untrusted(f"key {verified.signer.keyid} may no longer sign for {upload.namespace}")
    _demand_room(registry, unit, upload.namespace, manifest.pack.size, quota)
    published = Published(
        verified.revision, verified.envelope, verified.signer, upload.key, registry.now, token.token
    )
    unit.entries.advance(manifest, published)


def _note(
    registry: Registry,
    unit: Unit,
    token: Token,
    verified: Verified,
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
        signer=verified.signer,
    )


class _Intake(Iterable[bytes]):
    """Passes chunks on: hashes and counts them, refuses what is too much or too little, and extends the
    lease now and then."""

    def __init__(
        self, chunks: Iterable[bytes], size: int, extend: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._chunks, self._declared, self._extend, self._clock = chunks, size, extend, clock
        self._hash = hashlib.sha256()
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        extended = self._clock()
        for chunk in self._chunks:
            self.size += len(chunk)
            if self.size > self._declared:
                raise TooLarge(f"more than the {self._declared} bytes that the upload declared", _AGAIN)
            self._hash.update(chunk)
            if self._clock() - extended > EXTEND_SECONDS:
                self._extend()
                extended = self._clock()
            yield chunk
        if self.size != self._declared:
            raise InvalidRequest(f"{self.size} bytes came; the upload declared {self._declared}")

    @property
    def digest(self) -> Digest:
        return Digest("sha256:" + self._hash.hexdigest())
