"""Verify the token of a CI job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Unauthenticated

from . import signed
from .issuers import Issuers
from .signed import Unverified

MAX_SECONDS = 24 * 3600
"""Seconds that a job's token may live, at most. The registry remembers its use for so long."""
_HINT = "let the CI system issue a new one"


@dataclass(frozen=True, slots=True)
class Workload:
    """What an issuer says of a job. ``use``: the same for each use of one token. ``expires``: seconds of
    UTC."""

    issuer: str
    subject: str
    audience: str
    claims: Mapping[str, Any]
    expires: int
    use: Digest


def parse(text: str) -> Unverified:
    """Reads the parts of a token. Raises ``Unauthenticated``."""
    return signed.parse(text, _HINT)


def verify(token: Unverified, issuers: Issuers, now: float) -> Workload:
    """Returns what the token says, once its signature and its times are right.

    Raises ``Unauthenticated``, and ``Unavailable`` if the issuer's keys cannot be read.
    """
    signed.verify_signature(token, issuers)
    expires = signed.check_times(token, now)
    if expires > now + MAX_SECONDS + signed.SKEW_SECONDS:
        raise Unauthenticated("the token lives longer than a day", "let the CI system issue shorter ones")
    subject, audience = token.claims.get("sub"), token.claims.get("aud")
    audiences: list[Any] = audience if isinstance(audience, list) else [audience]
    if not isinstance(subject, str) or not audiences or not all(isinstance(one, str) for one in audiences):
        raise Unauthenticated("the token lacks sub or aud", _HINT)
    if len(set(audiences)) > 1:  # another audience that received it could show it here first
        raise Unauthenticated("the token has several audiences (aud)", "ask for one for this registry alone")
    return Workload(token.issuer, subject, audiences[0], token.claims, expires, _use(token))


def _use(token: Unverified) -> Digest:
    """Returns what identifies a token for its issuer: its ``jti``, else all that is signed. The signature
    itself does not: that of ECDSA can be changed and stay right."""
    identity = token.claims.get("jti")
    if not isinstance(identity, str) or not identity:
        identity = ["signed", token.text.rpartition(".")[0]]
    return Digest.of(codec.canonical([token.issuer, identity]))
