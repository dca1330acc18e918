"""Make the files of trust metadata: the root, the targets with a role for each namespace, snapshot and
timestamp.

Times are seconds of UTC. Each function returns the exact bytes of one file, signed by the ``signers``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from securesystemslib.signer import CryptoSigner
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

from cachesvc.schema.access import SignerRecord
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.trust_root.metadata import MAX_AGE, REVOKED, SIGNED_AT, Revocation

from .keys import tuf_key

DAY = 86_400
"""Seconds of a day."""
LIFETIME = {"root": 365 * DAY, "targets": 365 * DAY, "snapshot": 30 * DAY, "timestamp": 7 * DAY}
"""Seconds after which a role's file counts no more. A registry signs anew when half of them are over."""
EVERY_NAMESPACE = "every-namespace"
"""Name of the role of the signers that count in every namespace."""


@dataclass(frozen=True, slots=True)
class RoleKeys:
    """The keys of one role of a root. ``threshold``: how many of them must sign."""

    keys: tuple[PublicKey, ...]
    threshold: int = 1


def make_root(
    version: int, now: int, roles: Mapping[str, RoleKeys], signers: Sequence[CryptoSigner]
) -> bytes:
    """Returns a root that names the keys of each role."""
    root = Root(version=version, consistent_snapshot=True)
    for role in LIFETIME:
        for key in roles[role].keys:
            root.add_key(tuf_key(key), role)
        root.roles[role].threshold = roles[role].threshold
    return sign_file(root, now, signers)


def make_targets(
    version: int,
    now: int,
    delegated: Iterable[SignerRecord],
    revoked: Sequence[Revocation],
    signers: Sequence[CryptoSigner],
    ages: Mapping[str, int] | None = None,
) -> bytes:
    """Returns targets that delegate each namespace, with its lanes, to its signers, and list ``revoked``.
    ``ages``: by namespace, the seconds for which a revision counts."""
    roles: dict[str, DelegatedRole] = {}
    targets = Targets(version=version, delegations=Delegations({}, roles))
    for one in sorted(delegated, key=lambda one: (one.namespace, one.key)):
        name = role_name(one.namespace)
        roles.setdefault(name, DelegatedRole(name, [], 1, False, role_paths(one.namespace)))
        targets.add_key(tuf_key(PublicKey(one.key)), name)
    targets.unrecognized_fields[REVOKED] = [revocation_row(one) for one in revoked]
    if ages:
        targets.unrecognized_fields[MAX_AGE] = dict(ages)
    return sign_file(targets, now, signers)


def make_snapshot(
    version: int, now: int, targets_version: int, targets: bytes, signers: Sequence[CryptoSigner]
) -> bytes:
    """Returns a snapshot that names the targets."""
    snapshot = Snapshot(version=version, meta={"targets.json": _info(targets_version, targets)})
    return sign_file(snapshot, now, signers)


def make_timestamp(
    version: int, now: int, snapshot_version: int, snapshot: bytes, signers: Sequence[CryptoSigner]
) -> bytes:
    """Returns a timestamp that names the snapshot."""
    return sign_file(
        Timestamp(version=version, snapshot_meta=_info(snapshot_version, snapshot)), now, signers
    )


def role_name(namespace: str, lane: str | None = None) -> str:
    """Returns the name of the role of a namespace's signers, or of those of a pattern of its lanes."""
    name = EVERY_NAMESPACE if namespace == "*" else f"namespace-{namespace}"
    # No namespace has a `+`, and other clients make file names of the names of roles.
    return name if lane is None else f"{name}+lane-{lane.replace('*', '%2A').replace('?', '%3F')}"


def role_paths(namespace: str, lane: str | None = None) -> list[str]:
    """Returns the patterns of the paths of a namespace's revisions, or of those in a pattern of its lanes."""
    if lane is not None:
        return [f"{namespace}/lane/{lane}/*/*"]
    return [f"{namespace}/trunk/*/*", f"{namespace}/lane/*/*/*"]


def revocation_row(revoked: Revocation) -> dict[str, Any]:
    """Returns the row of a revoked key in targets."""
    row = {"key": str(revoked.key), "at": revoked.at, "reason": revoked.reason}
    return row if revoked.namespace is None else {**row, "namespace": revoked.namespace}


def sign_file(signed: Signed, now: int, signers: Sequence[CryptoSigner]) -> bytes:
    """Returns the file of ``signed``, with the time of the signature and the end of its role's time."""
    signed.expires = datetime.fromtimestamp(now + LIFETIME[signed.type], timezone.utc)
    signed.unrecognized_fields[SIGNED_AT] = now
    metadata: Metadata[Any] = Metadata(signed)
    for one in signers:
        metadata.sign(one, append=True)
    return metadata.to_bytes()


def next_version(before: int | None, now: int) -> int:
    """Returns the next version. It is above all that clients have seen, also if the index is of a backup."""
    return max((before or 0) + 1, now)


def _info(version: int, data: bytes) -> MetaFile:
    return MetaFile(version, len(data), {"sha256": hashlib.sha256(data).hexdigest()})
