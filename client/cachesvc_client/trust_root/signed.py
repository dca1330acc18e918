"""Check the signatures of trust metadata before anything in the metadata counts.

A metadata file of TUF is ``{"signatures": [...], "signed": {...}}``; the signatures are over the canonical
JSON of ``signed``, so the file is parsed as plain JSON first, with bounds, and read as metadata after the
check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..wire.codec import parse_json
from ..wire.errors import Corrupt, Untrusted
from .keys import MetadataKey

_MAX_SIGNATURES = 64
"""Largest number of signatures of one file."""
_MAX_KEYS = 1024
"""Largest number of keys of one role."""


@dataclass(frozen=True, slots=True)
class Role:
    """Holds who may sign for a role: ``threshold`` different keys of ``keyids``."""

    keyids: tuple[str, ...]
    threshold: int

    @classmethod
    def read(cls, value: Any, where: str) -> Role:
        """Return the role in an object. Raise ``ValueError`` that names ``where``."""
        if not isinstance(value, dict):
            raise ValueError(f"{where}: an object is expected")
        keyids, threshold = value.get("keyids"), value.get("threshold")
        if not isinstance(keyids, list) or not all(isinstance(keyid, str) for keyid in keyids):
            raise ValueError(f"{where}.keyids: a list of text is expected")
        if len(keyids) > _MAX_KEYS or len(set(keyids)) != len(keyids):
            raise ValueError(f"{where}.keyids: at most {_MAX_KEYS}, and each once")
        if type(threshold) is not int or threshold < 1:
            raise ValueError(f"{where}.threshold: a number of 1 or more is expected")
        return cls(tuple(keyids), threshold)


@dataclass(frozen=True, slots=True)
class SignedFile:
    """Holds a metadata file whose signatures are not checked yet. ``message``: the bytes that are signed.
    ``signatures``: by key id, in hex digits."""

    what: str
    content: dict[str, Any]
    message: bytes
    signatures: Mapping[str, str]

    @classmethod
    def parse(cls, data: bytes, *, limit: int, what: str) -> SignedFile:
        """Return the file in ``data``. Raise ``Corrupt`` that names ``what``."""
        try:
            value = parse_json(data, limit=limit, what=what)
            if not isinstance(value, dict):
                raise ValueError(f"{what}: an object is expected")
            content, entries = value.get("signed"), value.get("signatures")
            if not isinstance(content, dict) or not isinstance(entries, list):
                raise ValueError(f"{what}: an object with signed and signatures is expected")
            return cls(what, content, canonical_json(content), _signatures(entries, what))
        except (ValueError, RecursionError) as error:
            raise Corrupt(str(error)[:300]) from None

    def require(self, role: Role, keys: Mapping[str, MetadataKey], whose: str, hint: str = "") -> None:
        """Raise ``Untrusted`` unless ``role.threshold`` different keys of ``role`` signed the file.

        Keys are different if their key material is: two ids of one key count once. ``whose``: who names the
        keys, and ``hint``: what the user can do, for the message.
        """
        signers: set[str] = set()
        for keyid in role.keyids:
            key, signature = keys.get(keyid), self.signatures.get(keyid)
            if key is not None and signature and key.verifies(signature, self.message):
                signers.add(key.public)
        if len(signers) < role.threshold:
            raise Untrusted(
                f"{self.what}: signed by {len(signers)} of the keys that {whose} names; "
                f"{role.threshold} must sign",
                hint,
            )


def canonical_json(value: Any) -> bytes:
    """Return the bytes that TUF signs: OLPC's canonical JSON. Raise ``ValueError`` for what has none."""
    parts: list[str] = []
    _write_canonical(value, parts)
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError:
        raise ValueError("metadata: text that is not Unicode") from None


def _write_canonical(value: Any, parts: list[str]) -> None:
    if value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        parts.append('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')
    elif isinstance(value, int):
        parts.append(str(value))
    elif isinstance(value, list):
        parts.append("[")
        for index, item in enumerate(value):
            parts.append("," if index else "")
            _write_canonical(item, parts)
        parts.append("]")
    elif isinstance(value, dict):
        parts.append("{")
        for index, (key, item) in enumerate(sorted(value.items())):
            parts.append("," if index else "")
            _write_canonical(key, parts)
            parts.append(":")
            _write_canonical(item, parts)
        parts.append("}")
    else:
        raise ValueError(f"metadata: a {type(value).__name__} has no canonical form")


def _signatures(entries: list[Any], what: str) -> dict[str, str]:
    if len(entries) > _MAX_SIGNATURES:
        raise ValueError(f"{what}: {len(entries)} signatures, more than {_MAX_SIGNATURES}")
    signatures: dict[str, str] = {}
    for entry in entries:
        keyid = entry.get("keyid") if isinstance(entry, dict) else None
        signature = entry.get("sig") if isinstance(entry, dict) else None
        if not isinstance(keyid, str) or not isinstance(signature, str):
            raise ValueError(f"{what}: a signature has a keyid and a sig, which are text")
        if keyid in signatures:
            raise ValueError(f"{what}: two signatures of one key id")
        signatures[keyid] = signature
    return signatures
