"""Read the public keys of trust metadata and check signatures.

Signers of revisions have Ed25519 keys. The keys of root and targets may also be ECDSA or RSA keys, which are
what hardware tokens and key services offer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..bundle.seal import PublicKey

_KEY_TYPES = {
    ("ed25519", "ed25519"),
    ("ecdsa", "ecdsa-sha2-nistp256"),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp256"),
    ("rsa", "rsassa-pss-sha256"),
}
"""Pairs of key type and scheme whose signatures count."""
_MIN_RSA_BITS = 2048
"""Number of bits that an RSA key has at least."""


@dataclass(frozen=True, slots=True)
class MetadataKey:
    """Holds a key of trust metadata. ``public``: 64 hex digits for Ed25519, PEM for the other types."""

    keytype: str
    scheme: str
    public: str

    @classmethod
    def read(cls, value: Any, where: str) -> MetadataKey:
        """Return the key in a key object. Raise ``ValueError`` that names ``where``."""
        if not isinstance(value, dict) or not isinstance(value.get("keyval"), dict):
            raise ValueError(f"{where}: an object with keytype, scheme and keyval is expected")
        keytype, scheme, public = value.get("keytype"), value.get("scheme"), value["keyval"].get("public")
        if not (isinstance(keytype, str) and isinstance(scheme, str) and isinstance(public, str)):
            raise ValueError(f"{where}: keytype, scheme and keyval.public are text")
        return cls(keytype, scheme, public)

    @property
    def signer(self) -> PublicKey | None:
        """Return the key as the signer of revisions; ``None`` if it is not a usable Ed25519 key."""
        if (self.keytype, self.scheme) != ("ed25519", "ed25519"):
            return None
        try:
            return PublicKey.from_raw(bytes.fromhex(self.public))
        except ValueError:
            return None

    def verifies(self, signature: str, message: bytes) -> bool:
        """Return whether ``signature`` (hex digits) is one of this key over ``message``. Never raise."""
        if (self.keytype, self.scheme) not in _KEY_TYPES:
            return False
        try:
            raw = bytes.fromhex(signature)
        except ValueError:
            return False
        if self.keytype == "ed25519":
            return self.signer is not None and self.signer.verifies(raw, message)
        return self._verifies_pem(raw, message)

    def _verifies_pem(self, signature: bytes, message: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(self.public.encode())
            if self.keytype == "rsa" and isinstance(key, rsa.RSAPublicKey) and key.key_size >= _MIN_RSA_BITS:
                pss = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.AUTO)
                key.verify(signature, message, pss, SHA256())
                return True
            if self.keytype != "rsa" and isinstance(key, ec.EllipticCurvePublicKey):
                if not isinstance(key.curve, ec.SECP256R1):
                    return False
                key.verify(signature, message, ec.ECDSA(SHA256()))
                return True
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
            return False
        return False
