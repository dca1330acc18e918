"""Read roots and targets with python-tuf, and check that enough keys signed them."""

from __future__ import annotations

from typing import Any

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Targets
from tuf.api.metadata import Root as Root  # for the rooms above, which do not import python-tuf
from tuf.api.serialization import DeserializationError

from cachesvc_client.trust_root.metadata import SIGNED_AT
from cachesvc_client.wire.errors import Corrupt, Untrusted


def read_root(data: bytes, what: str = "root.json") -> Metadata[Root]:
    """Return the root in ``data``, without a check of its signatures. Raise ``Corrupt``."""
    return _read(data, "root", what)


def read_targets(data: bytes, what: str = "targets.json") -> Metadata[Targets]:
    """Return the targets in ``data``, without a check of their signatures. Raise ``Corrupt``."""
    return _read(data, "targets", what)


def check_root(root: Metadata[Root], before: Root | None) -> None:
    """Raise ``Untrusted`` unless enough keys of ``root`` itself and of the root before signed it."""
    for signer, whose in ((before, "the root before"), (root.signed, "this root itself")):
        if signer is not None:
            _check(root, signer, "root", whose)


def check_targets(targets: Metadata[Targets], root: Root) -> None:
    """Raise ``Untrusted`` unless enough keys of the targets, as ``root`` names them, signed the file."""
    _check(targets, root, "targets", f"root {root.version}")


def signed_at(metadata: Metadata[Any]) -> int | None:
    """Return the time at which a file says that it was signed."""
    value = metadata.signed.unrecognized_fields.get(SIGNED_AT)
    return value if type(value) is int else None


def _check(metadata: Metadata[Any], signer: Root, role: str, whose: str) -> None:
    try:
        result = signer.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
    except (RepositoryError, ValueError) as error:
        raise Untrusted(f"{role}.json: {str(error)[:200]}") from None
    if not result:
        raise Untrusted(
            f"{role}.json: {len(result.signed)} of the {result.threshold} signatures that {whose} demands",
            "the holders of the keys add theirs: cachesvc admin trust sign",
        )


def _read(data: bytes, role: str, what: str) -> Metadata[Any]:
    try:
        metadata: Metadata[Any] = Metadata.from_bytes(data)
    except (DeserializationError, RecursionError):
        raise Corrupt(f"{what}: not a file of trust metadata") from None
    if metadata.signed.type != role:
        raise Corrupt(f"{what}: a file of the role {metadata.signed.type}, and one of {role} is expected")
    return metadata
