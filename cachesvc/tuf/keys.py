"""Hold the private keys of the roles of trust metadata, as far as they are on this machine."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.signer import CryptoSigner, SSlibKey

from cachesvc_client.bundle.seal import PublicKey, SigningKey


@dataclass(frozen=True, slots=True)
class TrustKeys:
    """The keys with which a registry signs trust metadata. ``online`` signs snapshot and timestamp.

    ``root`` and ``targets`` are here in a registry of one machine, whose operator and registry are one.
    """

    root: SigningKey
    targets: SigningKey
    online: SigningKey

    @classmethod
    def load_or_make(cls, folder: Path) -> TrustKeys:
        """Returns the keys in a data folder; makes those that are missing. The caller holds the folder's
        lock."""
        return cls(*(_load_or_make(folder / f"{name}.key") for name in ("root", "targets", "online")))

    def signer(self, role: str) -> CryptoSigner:
        """Returns what signs the files of a role."""
        key = {"root": self.root, "targets": self.targets}.get(role, self.online)
        seed = base64.b64decode(key.text.partition(":")[2])
        return CryptoSigner(Ed25519PrivateKey.from_private_bytes(seed))


def tuf_key(key: PublicKey) -> SSlibKey:
    """Returns a public key in TUF's form."""
    return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(key.raw))


def _load_or_make(path: Path) -> SigningKey:
    if path.exists():
        return SigningKey.load(path)
    key = SigningKey.generate()
    key.save(path)
    return key
