"""The first start: a signing key, a signer for every namespace, and an admin's token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cachesvc.domain.access import ANY
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.wire.protocol import SignerRecord, TokenRequest

from .context import Registry
from .tokens import add_signer, create_token


@dataclass(frozen=True, slots=True)
class Welcome:
    """``secret``: of the token that was made now, if one was. ``trust``: the key in ``signing_key``, if
    the file is there."""

    secret: str | None
    trust: PublicKey | None
    signing_key: Path


def welcome(registry: Registry, signing_key: Path, *, new_token: bool = False) -> Welcome:
    """Makes what is missing. Safe to repeat: a start that was killed half-way is completed by the next.

    After the first start a missing key file is not replaced: an operator may have moved it into CI.
    """
    with registry.index.read() as unit:
        first = not unit.tokens.any_admin()
    if first and not signing_key.exists():
        SigningKey.generate().save(signing_key)
    trust = SigningKey.load(signing_key).public if signing_key.exists() else None
    secret = None
    if first:
        if trust is not None:
            add_signer(registry, None, SignerRecord(ANY, trust, "first start"))
        secret = create_token(registry, None, TokenRequest("first start", "admin")).secret
    elif new_token:
        secret = create_token(registry, None, TokenRequest("serve --new-token", "admin")).secret
    return Welcome(secret, trust, signing_key)
