"""Signs manifests with Ed25519, in DSSE envelopes.

The signed bytes are the payload exactly as it travels: nothing is re-serialised before it is checked. DSSE
and its pre-authentication encoding: https://github.com/secure-systems-lab/dsse, protocol.md and envelope.md,
v1.0.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..wire.errors import InvalidRequest
from ..wire.manifest.records import MAX_MANIFEST_BYTES, PAYLOAD_TYPE, Manifest
from ..wire.names import Namespace
from ..wire.text import ValidText

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PRIVATE_PREFIX = "ed25519-private:"
"""Prefix of the text of a private key."""
# 32 bytes are 43 base64 digits; the last holds 4 bits, so that one key has one text only.
_KEY_TEXT = r"[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]="
_PRIVATE_TEXT = re.compile(_PRIVATE_PREFIX + _KEY_TEXT)
_MAX_KEY_FILE = 4096
"""Number of bytes that are read of a key file, at most."""

_FIELD = (1 << 255) - 19
"""Prime of the field over which edwards25519 is defined."""
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _FIELD - 1,
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
    }
)
"""Y coordinates of the eight points of small order (RFC 8032, edwards25519). Under such a key, signatures
verify although no one made them."""


def pae(payload_type: str, payload: bytes) -> bytes:
    """Returns DSSE's pre-authentication encoding: the bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


class PublicKey(ValidText):
    """Names a signer: ``ed25519:<base64 of the 32 bytes>``. One key has exactly one text."""

    pattern = re.compile("ed25519:" + _KEY_TEXT)
    what = "public key (ed25519:<base64 of 32 bytes>)"
    __slots__ = ()

    def __new__(cls, text: object) -> PublicKey:
        key = super().__new__(cls, text)
        y = int.from_bytes(key.raw, "little") & ((1 << 255) - 1)
        if y >= _FIELD or y in _SMALL_ORDER:
            raise ValueError(f"not a usable public key: anybody can sign for {key}")
        return key

    @classmethod
    def from_raw(cls, raw: bytes) -> PublicKey:
        """Returns the key of 32 bytes. Raises ``ValueError`` for a key that anybody can sign for."""
        return cls("ed25519:" + base64.b64encode(raw).decode())

    @property
    def raw(self) -> bytes:
        """Returns the 32 bytes."""
        return base64.b64decode(self[len("ed25519:") :])

    @property
    def keyid(self) -> str:
        """Returns 16 hex digits that stand for the key in envelopes and messages; they are a hint, never a
        proof."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    @property
    def short(self) -> str:
        """Returns the key as tables and messages show it: its beginning, and the id that signatures have."""
        return f"{self[:16]}… ({self.keyid})"

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Returns whether this key signed ``message``. Never raises."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def key_text(key: str) -> str:
    """Returns a key of someone's answer as ``PublicKey.short`` shows it; a text that is no key as it is."""
    try:
        return PublicKey(key).short
    except ValueError:
        return key


class TrustedKey(ValidText):
    """Names a public key that a user trusts, and the namespace in which it counts: ``team=ed25519:…``, or
    ``*=ed25519:…`` for every namespace. A key without either counts for every namespace too, but only in a
    process whose names are all of one namespace (see `require_bound_keys`)."""

    pattern = re.compile(rf"(?:(?:\*|{Namespace.pattern.pattern})=)?{PublicKey.pattern.pattern}")
    what = "trusted public key (namespace=ed25519:<base64 of 32 bytes>, or without the namespace)"
    __slots__ = ()

    def __new__(cls, text: object) -> TrustedKey:
        trusted = super().__new__(cls, text)
        PublicKey(trusted.key)  # refuses keys that anybody can sign for
        return trusted

    @property
    def key(self) -> PublicKey:
        """Returns the key alone."""
        return PublicKey(self[self.find("ed25519:") :])

    @property
    def namespace(self) -> str | None:
        """Returns the namespace; ``*`` for every one, ``None`` if the text names none."""
        namespace, separator, _ = self.rpartition("=ed25519:")
        return namespace if separator else None

    def counts_for(self, namespace: Namespace) -> bool:
        """Returns whether a signature of this key counts for a publication in ``namespace``."""
        return self.namespace in (None, "*", namespace)


def require_bound_keys(trusted: Iterable[TrustedKey], namespaces: Iterable[Namespace]) -> None:
    """Raises ``InvalidRequest`` if a key without a namespace would count for several ``namespaces``: the
    signer of one team could publish for the other."""
    names = sorted(set(namespaces))
    unbound = next((key for key in trusted if key.namespace is None), None)
    if unbound is not None and len(names) > 1:
        raise InvalidRequest(
            f"trusted key {unbound.key.short} names no namespace, and this process uses {', '.join(names)}",
            f'write it as "{names[0]}={unbound}", or "*={unbound}" if it may sign for all of them',
        )


class Signer(ABC):
    """Signs for one public key. The private key may lie elsewhere: see `publication.signer`."""

    __slots__ = ()

    @property
    @abstractmethod
    def public(self) -> PublicKey:
        """Returns the public key, which others trust."""

    @abstractmethod
    def sign_message(self, message: bytes) -> bytes:
        """Returns the Ed25519 signature of exactly these bytes: 64 bytes that ``public`` verifies."""

    def sign(self, manifest: Manifest) -> bytes:
        """Returns the exact bytes of a DSSE envelope that holds ``manifest``. Deterministic.

        Raises ``InvalidRequest`` if the manifest is larger than any reader accepts.
        """
        payload = manifest.encode()
        if len(payload) > MAX_MANIFEST_BYTES:
            raise InvalidRequest(
                f"manifest: {len(payload)} bytes, more than the {MAX_MANIFEST_BYTES} allowed"
            )
        return self.sign_bytes(payload, PAYLOAD_TYPE)

    def sign_bytes(self, payload: bytes, payload_type: str) -> bytes:
        """Returns an envelope over any payload; publishing uses ``sign``."""
        envelope = {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": [self._signature(payload, payload_type)],
        }
        return json.dumps(envelope, separators=(",", ":")).encode()

    def add_signature(self, envelope: bytes) -> bytes:
        """Returns ``envelope``, which the caller has checked, with this key's signature beside the others. An
        older signature of this key is replaced."""
        value = json.loads(envelope)
        payload = strict_base64(value["payload"])
        others = [one for one in value["signatures"] if one["keyid"] != self.public.keyid]
        signatures = [*others, self._signature(payload, value["payloadType"])]
        return json.dumps({**value, "signatures": signatures}, separators=(",", ":")).encode()

    def _signature(self, payload: bytes, payload_type: str) -> dict[str, str]:
        signature = self.sign_message(pae(payload_type, payload))
        return {"keyid": self.public.keyid, "sig": base64.b64encode(signature).decode()}


class SigningKey(Signer):
    """Holds an Ed25519 private key. Its text, ``ed25519-private:<base64>``, is a secret, and no repr shows
    it."""

    __slots__ = ("_key",)

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"SigningKey({self.public})"

    @classmethod
    def generate(cls) -> SigningKey:
        """Makes a new key from the system's random source."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_text(cls, text: str, where: str = "the signing key") -> SigningKey:
        """Parses ``text``. Raises ``InvalidRequest`` that names ``where`` and never the text."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        text = text.strip()
        if PublicKey.pattern.fullmatch(text):
            raise InvalidRequest(f"{where}: this is a public key", "signing takes the private one")
        if not _PRIVATE_TEXT.fullmatch(text):
            raise InvalidRequest(
                f"{where}: not a signing key", f"expected {_PRIVATE_PREFIX}<base64 of 32 bytes>"
            )
        seed = base64.b64decode(text[len(_PRIVATE_PREFIX) :])
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Reads the key that ``save`` wrote. Raises ``InvalidRequest`` with one line."""
        try:
            with open(path, "rb") as file:
                text = file.read(_MAX_KEY_FILE).decode("ascii")
        except OSError as error:
            raise InvalidRequest(f"signing key {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            text = ""
        return cls.from_text(text, f"signing key {path}")

    @property
    def text(self) -> str:
        """Returns the text form of the secret."""
        return _PRIVATE_PREFIX + base64.b64encode(self._key.private_bytes_raw()).decode()

    @property
    def public(self) -> PublicKey:
        """Returns the public key, which others trust."""
        return PublicKey.from_raw(self._key.public_key().public_bytes_raw())

    def save(self, path: Path) -> None:
        """Writes the secret with mode 0600. Never overwrites: raises ``InvalidRequest`` if the file
        exists."""
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            raise InvalidRequest(
                f"signing key {path}: exists and is not overwritten", "remove it or name another file"
            ) from None
        except OSError as error:
            raise InvalidRequest(f"signing key {path}: {error.strerror or error}") from None
        with os.fdopen(handle, "w") as file:
            file.write(self.text + "\n")
            file.flush()
            os.fsync(file.fileno())

    def sign_message(self, message: bytes) -> bytes:
        """Returns the signature of ``message``."""
        return self._key.sign(message)


def strict_base64(text: str) -> bytes:
    """Decodes standard base64 with padding and nothing else. Raises ``ValueError``."""
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("not base64") from None
