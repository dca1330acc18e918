"""Verify the token of a CI job (JSON Web Token, RFC 7519, by the advice of RFC 8725)."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError

from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Unauthenticated
from cachesvc_client.wire.publishers import MAX_WORKLOAD_TOKEN

from .issuers import Issuers
from .keys import ALGORITHMS

SKEW_SECONDS = 60
"""Seconds by which the clocks of issuer and registry may differ."""
MAX_SECONDS = 24 * 3600
"""Seconds that a job's token may live, at most. The registry remembers its use for so long."""
_TYPES = (None, "jwt", "application/jwt")
_HINT = "let the CI system issue a new one"
_MOST_KEYS = 4
"""Keys that are tried for a token that names none."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """A token that was parsed. Nothing that it says is true yet."""

    text: str
    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    issuer: str


@dataclass(frozen=True, slots=True)
class Workload:
    """What an issuer says of a job. ``use``: the same for each use of one token. ``expires``: seconds of
    UTC."""

    issuer: str
    subject: str
    audiences: tuple[str, ...]
    claims: Mapping[str, Any]
    expires: int
    use: Digest


def parse(text: str) -> Unverified:
    """Reads the parts of a token. Raises ``Unauthenticated``."""
    parts = text.split(".")
    if len(parts) != 3:
        raise Unauthenticated("not a JSON Web Token with a signature", _HINT)
    header, claims = _json(parts[0], "header"), _json(parts[1], "claims")
    issuer = claims.get("iss")
    if not isinstance(issuer, str) or not issuer.isprintable():
        raise Unauthenticated("the token names no issuer", _HINT)
    return Unverified(text, header, claims, issuer)


def verify(token: Unverified, issuers: Issuers, now: float) -> Workload:
    """Returns what the token says, once its signature and its times are right.

    Raises ``Unauthenticated``, and ``Unavailable`` if the issuer's keys cannot be read.
    """
    _verify_signature(token, issuers)
    expires = _check_times(token.claims, now)
    subject, audience = token.claims.get("sub"), token.claims.get("aud")
    audiences: list[Any] = audience if isinstance(audience, list) else [audience]
    if not isinstance(subject, str) or not all(isinstance(one, str) for one in audiences):
        raise Unauthenticated("the token lacks sub or aud", _HINT)
    return Workload(token.issuer, subject, tuple(audiences), token.claims, expires, _use(token))


def _verify_signature(token: Unverified, issuers: Issuers) -> None:
    algorithm, key_id, kind = (token.header.get(name) for name in ("alg", "kid", "typ"))
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise Unauthenticated(
            f"the token's algorithm {str(algorithm)[:20]!r} does not count",
            f"one of: {', '.join(ALGORITHMS)}",
        )
    if "crit" in token.header or "b64" in token.header or not isinstance(key_id, str | None):
        raise Unauthenticated("the token's header asks for what is not supported", _HINT)
    if not isinstance(kind, str | None) or (kind and kind.lower()) not in _TYPES:
        raise Unauthenticated(f"the token is of the type {str(kind)[:20]!r}, not JWT", _HINT)
    keys = issuers.keys(token.issuer, algorithm, key_id)
    if not keys:
        raise Unauthenticated(
            f"issuer {token.issuer} has no key {str(key_id)[:80]!r} for {algorithm}",
            "a new key is found within a minute; try again then",
        )
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    for key in keys[:_MOST_KEYS]:
        try:
            jws.deserialize_compact(token.text, key.key, algorithms=[algorithm], registry=registry)
            return
        except (JoseError, ValueError):
            continue
    raise Unauthenticated(f"the token's signature is not by a key of issuer {token.issuer}", _HINT)


def _check_times(claims: Mapping[str, Any], now: float) -> int:
    """Returns when the token expires. Raises ``Unauthenticated`` if that is past, or it began later than
    now."""
    expires, begins, issued = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None:
        raise Unauthenticated("the token does not say when it expires", _HINT)
    if expires + SKEW_SECONDS <= now:
        raise Unauthenticated("the token has expired", _HINT)
    if max(begins or 0, issued or 0) > now + SKEW_SECONDS:
        raise Unauthenticated("the token is not valid yet", "compare the clocks of issuer and registry")
    if expires > now + MAX_SECONDS + SKEW_SECONDS:
        raise Unauthenticated("the token lives longer than a day", "let the CI system issue shorter ones")
    return math.ceil(expires)


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise Unauthenticated(f"the token's {name} is not a time", _HINT)
    return float(value)


def _use(token: Unverified) -> Digest:
    """Returns what identifies a token for its issuer: its ``jti``, else all that is signed. The signature
    itself does not: that of ECDSA can be changed and stay right."""
    identity = token.claims.get("jti")
    if not isinstance(identity, str) or not identity:
        identity = ["signed", token.text.rpartition(".")[0]]
    return Digest.of(codec.canonical([token.issuer, identity]))


def _json(part: str, what: str) -> dict[str, Any]:
    try:
        data = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        value = codec.parse_json(data, limit=MAX_WORKLOAD_TOKEN, what=f"the token's {what}")
    except (binascii.Error, ValueError):
        raise Unauthenticated(f"the token's {what} cannot be read", _HINT) from None
    if not isinstance(value, dict):
        raise Unauthenticated(f"the token's {what} is not an object", _HINT)
    return value
