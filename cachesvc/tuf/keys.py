"""Hold the private keys of the roles of trust metadata, as far as a registry can reach them, and turn keys
into python-tuf's form."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.signer import CryptoSigner, Key, SSlibKey
from tuf.api.metadata import Root

from cachesvc_client.bundle.seal import PublicKey, SigningKey

KEY_NAMES = ("root", "targets", "online")
"""Names of the keys. ``online`` signs snapshot and timestamp."""


class TrustKeys:
    """The private keys of trust metadata that a registry can reach.

    ``folder``: the data folder of a registry of one machine, whose operator and registry are one; its files
    ``root.key``, ``targets.key`` and ``online.key`` are read at each use, because an operator removes the
    first two when the root becomes an offline one. ``online``: the key of the settings for snapshot and
    timestamp. With it no key is made in the folder: the operator has the keys of root and targets.
    """

    def __init__(self, folder: Path | None, online: SigningKey | None = None) -> None:
        self._folder, self._online = folder, online

    @property
    def makes_keys(self) -> bool:
        """Whether the registry makes a root of its own if there is none, and its own online keys. Else the
        operator puts an online key into the settings."""
        return self._folder is not None and self._online is None

    def make_missing(self) -> None:
        """Makes the keys that the folder lacks. The caller has the folder's lock."""
        for name in KEY_NAMES:
            if self._folder is not None and not self._path(name).exists():
                SigningKey.generate().save(self._path(name))

    def prepare_next(self, names: Iterable[str]) -> None:
        """Makes the next key of each name, unless there is one. It counts from the root on that names it."""
        for name in names:
            if self._folder is not None and not self._path(name, ".new").exists():
                SigningKey.generate().save(self._path(name, ".new"))

    def settle(self, root: Root) -> None:
        """Puts each waiting key that ``root`` names in the place of the key before."""
        for name in KEY_NAMES:
            if self._folder is None or not self._path(name, ".new").exists():
                continue
            role = "timestamp" if name == "online" else name
            if _named(root, role, SigningKey.load(self._path(name, ".new")).public) is not None:
                os.replace(self._path(name, ".new"), self._path(name))

    def newest(self, name: str) -> SigningKey | None:
        """Returns the key of a name that the next root is to name; ``None`` if there is none here."""
        return next(iter(self._keys(name)), None)

    def names_newest_online(self, root: Root) -> bool:
        """Returns whether ``root`` names the online key that is the newest here."""
        key = self.newest("online")
        return key is not None and _named(root, "timestamp", key.public) is not None

    def signers(self, root: Root, role: str) -> list[CryptoSigner]:
        """Returns what signs the files of a role: the keys that are here and that ``root`` names."""
        keys = self._keys(role if role in ("root", "targets") else "online")
        named = [(key, _named(root, role, key.public)) for key in keys]
        return [signer(key, public) for key, public in named if public is not None]

    def can_sign(self, root: Root, role: str) -> bool:
        """Returns whether enough keys of a role are here."""
        return len(self.signers(root, role)) >= root.roles[role].threshold

    def _keys(self, name: str) -> list[SigningKey]:
        """Lists the keys of a name that are here, the next root's first."""
        keys = [self._online] if name == "online" and self._online is not None else []
        if self._folder is None:
            return keys
        paths = (self._path(name, ".new"), self._path(name))
        return [*keys, *(SigningKey.load(path) for path in paths if path.exists())]

    def _path(self, name: str, kind: str = "") -> Path:
        assert self._folder is not None
        return self._folder / f"{name}{kind}.key"


def tuf_key(key: PublicKey) -> SSlibKey:
    """Returns a public key in TUF's form."""
    return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(key.raw))


def key_texts(root: Root, role: str) -> tuple[str, ...]:
    """Returns the keys of a role of ``root`` as texts: an Ed25519 key whole, as ``ed25519:…``; of another key
    its type and the beginning of its id in the metadata."""
    texts = []
    for keyid in root.roles[role].keyids:
        key = root.keys.get(keyid)
        kind = key.keytype if key is not None else "unknown"
        texts.append((public_key(key) if key is not None else None) or f"{kind}:{keyid[:16]}")
    return tuple(texts)


def public_key(key: Key) -> PublicKey | None:
    """Returns a key of TUF's form as an Ed25519 key; ``None`` for one of another type."""
    if (key.keytype, key.scheme) != ("ed25519", "ed25519"):
        return None
    try:
        return PublicKey.from_raw(bytes.fromhex(key.keyval["public"]))
    except ValueError:
        return None


def signer(key: SigningKey, public: Key | None = None) -> CryptoSigner:
    """Returns what signs metadata with a key. ``public``: the same key as the metadata name it."""
    seed = base64.b64decode(key.text.partition(":")[2])
    private = Ed25519PrivateKey.from_private_bytes(seed)
    return CryptoSigner(private, public if isinstance(public, SSlibKey) else None)


def _named(root: Root, role: str, key: PublicKey) -> Key | None:
    """Returns a key as the role of a root names it; ``None`` if the role does not."""
    keys = [root.keys[keyid] for keyid in root.roles[role].keyids if keyid in root.keys]
    return next((one for one in keys if public_key(one) == key), None)
