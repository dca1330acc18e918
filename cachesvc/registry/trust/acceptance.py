"""Decide whose signature the registry accepts, and for what."""

from __future__ import annotations

import logging
import math

from cachesvc.index.packs.uploads import Upload
from cachesvc.index.unit import Unit
from cachesvc_client.bundle.check import CLOCK_SKEW_SECONDS, ExpectedStatement
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.trust.accept import Acceptance, Accepted
from cachesvc_client.wire import codec
from cachesvc_client.wire.compare import signer_revoked
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, Untrusted
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.protocol import BundleRequest
from cachesvc_client.wire.requests.reports import MAX_SECONDS

from ..context import Registry

MAX_FACTS_BYTES = 64 << 10
"""Bytes of a manifest's fingerprint and measured seconds: every resolve reads them for every candidate."""

_log = logging.getLogger("cachesvc.publish")


def accepted_signers(unit: Unit, namespace: Namespace) -> tuple[list[PublicKey], int | None]:
    """Returns the keys whose signatures ``namespace`` accepts, and the quota of its policy in bytes.

    Raises ``Untrusted`` if the namespace has no such key, unless keys were revoked there: :func:`verify` says
    so of the one that signed.
    """
    texts, quota = unit.signers.accepted(namespace)
    keys = [key for text in texts if (key := _usable_key(text, namespace)) is not None]
    if not keys and not unit.revoked.all(namespace):
        raise Untrusted(
            f"no {'usable ' if texts else ''}signer is registered for namespace {namespace}",
            "an admin adds one: cachesvc admin signers add",
        )
    return keys, quota


def _usable_key(text: str, namespace: Namespace) -> PublicKey | None:
    """Returns the key of a stored signer; ``None``, with a warning, for a key that an older version stored
    and this version does not accept."""
    try:
        return PublicKey(text)
    except ValueError as error:
        _log.warning(
            "a signer of namespace %s is ignored: %s; remove it: cachesvc admin signers remove",
            namespace,
            error,
        )
        return None


def verify(
    registry: Registry, place: Upload | BundleRequest, envelope: bytes, trusted: list[PublicKey]
) -> Accepted:
    """Checks that a key of ``trusted`` has signed the envelope for ``place``: namespace, name and lane.

    Raises ``Untrusted``, ``Corrupt``, ``InvalidRequest``.
    """
    expected = ExpectedStatement(place.namespace, place.name, None, place.lane)
    hint = f"an admin accepts a key with: cachesvc admin signers add KEY -n {place.namespace}"
    try:
        verified = Acceptance(trusted, trust_hint=hint).accept_signed(
            envelope, expected, now=registry.clock()
        )
    except Untrusted:
        _refuse_revoked(registry, place.namespace, envelope)
        raise
    statement = verified.manifest.statement
    if statement.lane != place.lane:
        raise InvalidRequest(
            f"signed for {statement.lane or 'the trunk'}, uploaded to {place.lane or 'the trunk'}",
            "sign for the lane that the upload names",
        )
    check_bounds(verified.manifest)
    ahead = statement.sequence / 1000 - registry.clock()
    if ahead > CLOCK_SKEW_SECONDS:
        raise InvalidRequest(
            f"sequence {statement.sequence} is {int(ahead)} s in the future; it is milliseconds of UTC",
            "set the signing machine's clock",
        )
    return verified


def _refuse_revoked(registry: Registry, namespace: Namespace, envelope: bytes) -> None:
    """Raises ``Untrusted`` that names the revocation, if a key that was revoked there signed the envelope."""
    with registry.index.read() as unit:
        revoked = {row.key: row for row in unit.revoked.all(namespace)}
    keys = [key for text in revoked if (key := _usable_key(text, namespace)) is not None]
    try:
        signer = Acceptance(keys).accept_signed(envelope, None, now=registry.clock()).signer
    except CacheSvcError:
        return
    raise Untrusted(
        f"key {signer.short} may not sign for {namespace}: the {signer_revoked(revoked[signer].why)}",
        "sign with another key: cachesvc keygen",
    )


def check_bounds(manifest: Manifest) -> None:
    """Checks that the index can store what it keeps beside the envelope. Raises ``InvalidRequest``."""
    if manifest.statement.expires is not None and not 0 < manifest.statement.expires < 1 << 53:
        raise InvalidRequest("manifest.statement.expires: out of range; it is seconds of UTC")
    for name, seconds in manifest.measured.items():
        # Retention orders evictions by these numbers, and operators read them.
        if not (math.isfinite(seconds) and 0 <= seconds <= MAX_SECONDS):
            raise InvalidRequest(f"manifest.measured.{name[:40]}: seconds, 0 to {MAX_SECONDS:.0f}")
    try:
        size = len(codec.canonical([manifest.fingerprint, manifest.measured]))
    except ValueError as error:
        raise InvalidRequest(f"manifest.fingerprint: {error}"[:200]) from None
    if size > MAX_FACTS_BYTES:
        raise InvalidRequest(f"manifest.fingerprint and measured: more than {MAX_FACTS_BYTES} bytes")
