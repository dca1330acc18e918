"""Complete the key that a user means: the whole key, the beginning of one, or the id that messages show."""

from __future__ import annotations

from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.protocol import SignerRecord
from cachesvc_client.wire.revocations import RevokedSigner

from .arguments import parse_option
from .connection import Connection

_PREFIX = "ed25519:"
LEAST = 4
"""Characters of a key after ``ed25519:``, or hex digits of its id, at least."""


def complete_key(registry: Connection, text: str) -> PublicKey:
    """Return the key that ``text`` means, among the registry's signers and the keys that were revoked; a
    whole key need not be there.

    Raises ``InvalidRequest`` for a text that is too short or that several keys begin with, ``NotFound``.
    """
    short = text.partition(" ")[0].rstrip("…").rstrip(".")
    if PublicKey.pattern.fullmatch(short):
        return parse_option(lambda: PublicKey(short))
    if len(short.removeprefix(_PREFIX)) < LEAST:
        raise InvalidRequest(f"key {text[:60]!r}", f"{_PREFIX}… , or {LEAST} or more of its first characters")
    rows = (*registry.rows("/v1/signers", SignerRecord), *registry.rows("/v1/revocations", RevokedSigner))
    known = {parse_option(lambda row=row: PublicKey(row.key)) for row in rows}  # type: ignore[misc]
    matches = sorted(key for key in known if _begins(key, short))
    if not matches:
        raise NotFound(f"no signer's key begins with {text[:60]!r}", "see: cachesvc admin signers list")
    if len(matches) > 1:
        raise InvalidRequest(
            f"{len(matches)} keys begin with {text[:60]!r}", "give more of it: " + ", ".join(matches[:4])
        )
    return matches[0]


def _begins(key: PublicKey, short: str) -> bool:
    return key.startswith(short) or key.removeprefix(_PREFIX).startswith(short) or key.keyid.startswith(short)
