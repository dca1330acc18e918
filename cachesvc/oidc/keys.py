"""Read the public keys of an issuer (JSON Web Key Set, RFC 7517)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

MAX_KEYS = 100
"""Keys of one issuer that are read, at most."""
LEAST_RSA_BITS = 2048
MOST_RSA_BITS = 8192
_MOST_EXPONENT = 1 << 32

ALGORITHMS: Mapping[str, tuple[str, str | None]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
    "Ed25519": ("OKP", "Ed25519"),
}
"""The signature algorithms that count, with the type and the curve of their keys. All have a public key:
``none`` and HMAC are absent."""
_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_KINDS: Mapping[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key, and what its issuer says of it."""

    key: RSAKey | ECKey | OKPKey
    kind: str
    curve: str | None
    key_id: str | None
    algorithm: str | None

    def fits(self, algorithm: str, key_id: str | None) -> bool:
        """Returns whether a token with this header may be signed by this key."""
        if ALGORITHMS.get(algorithm) != (self.kind, self.curve):
            return False
        if key_id is not None and self.key_id != key_id:
            return False
        return self.algorithm in (None, algorithm) or {self.algorithm, algorithm} == {"EdDSA", "Ed25519"}


def read_keys(document: Mapping[str, Any]) -> list[PublicKey]:
    """Returns the keys for signatures; omits what is for another use, too weak, or malformed."""
    rows = document.get("keys")
    if not isinstance(rows, list):
        return []
    return [key for row in rows[:MAX_KEYS] if isinstance(row, dict) and (key := _read_key(row)) is not None]


def _read_key(row: Mapping[str, Any]) -> PublicKey | None:
    kind = row.get("kty")
    if not isinstance(kind, str) or kind not in _MEMBERS or row.get("use", "sig") != "sig":
        return None
    public = {name: str(row[name]) for name in _MEMBERS[kind] if isinstance(row.get(name), str)}
    if len(public) < len(_MEMBERS[kind]):
        return None
    try:
        key = _KINDS[kind].import_key({"kty": kind, **public})
        if isinstance(key, RSAKey) and not _is_strong(key):
            return None
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    key_id, algorithm = row.get("kid"), row.get("alg")
    return PublicKey(
        key,
        kind,
        None if kind == "RSA" else public["crv"],
        key_id if isinstance(key_id, str) else None,
        algorithm if isinstance(algorithm, str) else None,
    )


def _is_strong(key: RSAKey) -> bool:
    numbers = key.public_key.public_numbers()
    return LEAST_RSA_BITS <= numbers.n.bit_length() <= MOST_RSA_BITS and numbers.e < _MOST_EXPONENT
