"""Read and verify a token that an issuer has signed (JSON Web Token, RFC 7519, by the advice of RFC 8725)."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError

from cachesvc.schema.publishers import MAX_WORKLOAD_TOKEN
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import Unauthenticated

from .issuers import Issuers
from .keys import ALGORITHMS

SKEW_SECONDS = 60
"""Seconds by which the clocks of issuer and registry may differ."""
_TYPES = (None, "jwt", "application/jwt")
_MOST_KEYS = 4
"""Keys that are tried for a token that names none."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """A token that was parsed. Nothing that it says is true yet. ``hint``: what whoever shows it can do about
    a fault of it."""

    text: str
    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    issuer: str
    hint: str


def parse(text: str, hint: str) -> Unverified:
    """Reads the parts of a token. Raises ``Unauthenticated`` with ``hint``."""
    parts = text.split(".")
    if len(parts) != 3:
        raise Unauthenticated("not a JSON Web Token with a signature", hint)
    header, claims = _json(parts[0], "header", hint), _json(parts[1], "claims", hint)
    issuer = claims.get("iss")
    if not isinstance(issuer, str) or not issuer.isprintable():
        raise Unauthenticated("the token names no issuer", hint)
    return Unverified(text, header, claims, issuer, hint)


def verify_signature(token: Unverified, issuers: Issuers) -> None:
    """Checks that a key of the token's issuer has signed it. Raises ``Unauthenticated``, and ``Unavailable``
    if the issuer's keys cannot be read."""
    algorithm, key_id, kind = (token.header.get(name) for name in ("alg", "kid", "typ"))
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise Unauthenticated(
            f"the token's algorithm {str(algorithm)[:20]!r} does not count",
            f"one of: {', '.join(ALGORITHMS)}",
        )
    if "crit" in token.header or "b64" in token.header or not isinstance(key_id, str | None):
        raise Unauthenticated("the token's header asks for what is not supported", token.hint)
    if not isinstance(kind, str | None) or (kind and kind.lower()) not in _TYPES:
        raise Unauthenticated(f"the token is of the type {str(kind)[:20]!r}, not JWT", token.hint)
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
    raise Unauthenticated(f"the token's signature is not by a key of issuer {token.issuer}", token.hint)


def check_times(token: Unverified, now: float) -> int:
    """Returns when the token expires. Raises ``Unauthenticated`` if that is past, or it began later than
    now."""
    expires, begins, issued = (_time(token, name) for name in ("exp", "nbf", "iat"))
    if expires is None:
        raise Unauthenticated("the token does not say when it expires", token.hint)
    if expires + SKEW_SECONDS <= now:
        raise Unauthenticated("the token has expired", token.hint)
    if max(begins or 0, issued or 0) > now + SKEW_SECONDS:
        raise Unauthenticated("the token is not valid yet", "compare the clocks of issuer and registry")
    return math.ceil(expires)


def _time(token: Unverified, name: str) -> float | None:
    value = token.claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise Unauthenticated(f"the token's {name} is not a time", token.hint)
    return float(value)


def _json(part: str, what: str, hint: str) -> dict[str, Any]:
    try:
        data = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        value = codec.parse_json(data, limit=MAX_WORKLOAD_TOKEN, what=f"the token's {what}")
    except (binascii.Error, ValueError):
        raise Unauthenticated(f"the token's {what} cannot be read", hint) from None
    if not isinstance(value, dict):
        raise Unauthenticated(f"the token's {what} is not an object", hint)
    return value
