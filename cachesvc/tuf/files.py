"""Make the files of trust metadata: the root, the targets with a role for each namespace, snapshot and
timestamp.

Times are seconds of UTC. Each function returns the exact bytes of one signed file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Signed,
    Snapshot,
    Targets,
    Timestamp,
)

from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.trust_root.metadata import REVOKED, SIGNED_AT, Revocation
from cachesvc_client.wire.protocol import SignerRecord

from .keys import TrustKeys, tuf_key

DAY = 86_400
"""Seconds of a day."""
LIFETIME = {"root": 365 * DAY, "targets": 365 * DAY, "snapshot": 30 * DAY, "timestamp": 7 * DAY}
"""Seconds after which a role's file counts no more. A registry signs anew when half of them are over."""
EVERY_NAMESPACE = "every-namespace"
"""Name of the role of the signers that count in every namespace."""


def make_root(keys: TrustKeys, version: int, now: int) -> bytes:
    """Returns a root of one key for each role."""
    root = Root(version=version, expires=_expiry("root", now), consistent_snapshot=True)
    for role in LIFETIME:
        root.add_key(keys.signer(role).public_key, role)
    return _signed(root, "root", keys, now)


def make_targets(
    keys: TrustKeys,
    version: int,
    now: int,
    signers: Iterable[SignerRecord],
    revoked: Sequence[Revocation],
) -> bytes:
    """Returns targets that delegate each namespace, with its lanes, to its signers, and list ``revoked``."""
    roles: dict[str, DelegatedRole] = {}
    targets = Targets(version=version, expires=_expiry("targets", now), delegations=Delegations({}, roles))
    for signer in sorted(signers, key=lambda one: (one.namespace, one.key)):
        name = EVERY_NAMESPACE if signer.namespace == "*" else f"namespace-{signer.namespace}"
        paths = [f"{signer.namespace}/trunk/*/*", f"{signer.namespace}/lane/*/*/*"]
        roles.setdefault(name, DelegatedRole(name, [], 1, False, paths))
        targets.add_key(tuf_key(PublicKey(signer.key)), name)
    targets.unrecognized_fields[REVOKED] = [_revocation(one) for one in revoked]
    return _signed(targets, "targets", keys, now)


def make_snapshot(keys: TrustKeys, version: int, now: int, targets_version: int, targets: bytes) -> bytes:
    """Returns a snapshot that names the targets."""
    meta = {"targets.json": _info(targets_version, targets)}
    return _signed(
        Snapshot(version=version, expires=_expiry("snapshot", now), meta=meta), "snapshot", keys, now
    )


def make_timestamp(keys: TrustKeys, version: int, now: int, snapshot_version: int, snapshot: bytes) -> bytes:
    """Returns a timestamp that names the snapshot."""
    timestamp = Timestamp(
        version=version, expires=_expiry("timestamp", now), snapshot_meta=_info(snapshot_version, snapshot)
    )
    return _signed(timestamp, "timestamp", keys, now)


def _revocation(revoked: Revocation) -> dict[str, Any]:
    row = {"key": str(revoked.key), "at": revoked.at, "reason": revoked.reason}
    return row if revoked.namespace is None else {**row, "namespace": revoked.namespace}


def _signed(signed: Signed, role: str, keys: TrustKeys, now: int) -> bytes:
    signed.unrecognized_fields[SIGNED_AT] = now
    metadata: Metadata[Any] = Metadata(signed)
    metadata.sign(keys.signer(role))
    return metadata.to_bytes()


def _info(version: int, data: bytes) -> MetaFile:
    return MetaFile(version, len(data), {"sha256": hashlib.sha256(data).hexdigest()})


def _expiry(role: str, now: int) -> datetime:
    return datetime.fromtimestamp(now + LIFETIME[role], timezone.utc)
