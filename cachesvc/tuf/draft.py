"""Keep a root or targets that still need signatures in a file, which goes from holder to holder."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from securesystemslib.signer import Key
from tuf.api.metadata import Metadata, Root

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust_root.updater import MAX_METADATA_BYTES, MAX_ROOT_BYTES
from cachesvc_client.wire.codec import build, parse_json
from cachesvc_client.wire.errors import InvalidRequest

from .keys import public_key, signer
from .read import read_root, read_targets

DRAFT_FORMAT = "cachesvc.trust-draft/1"
"""Format of the drafts that this version writes and reads."""
MAX_DRAFT_BYTES = 2 * (2 * MAX_ROOT_BYTES + MAX_METADATA_BYTES)
"""Largest number of bytes of a draft."""


@dataclass(frozen=True, slots=True)
class Count:
    """Counts the signatures of one file by the keys that one root names. ``what``: the file. ``whose``: the
    root."""

    what: str
    whose: str
    signatures: int
    threshold: int

    def __str__(self) -> str:
        return f"{self.what}: {self.signatures} of {self.threshold} signatures by keys of {self.whose}"


@dataclass(frozen=True, slots=True)
class Draft:
    """Holds the files that an operator is about to send to a registry.

    ``registry``: its address. ``present``: the root that clients have now; ``None`` before the first.
    ``root`` and ``targets``: the files with the signatures that they have; at least one of them.
    """

    registry: str
    present: str | None = None
    root: str | None = None
    targets: str | None = None
    format: str = DRAFT_FORMAT

    def __post_init__(self) -> None:
        if self.format != DRAFT_FORMAT:
            raise ValueError(f"format: {self.format[:60]!r}, {DRAFT_FORMAT!r} is expected")
        if self.root is None and self.targets is None:
            raise ValueError("neither a root nor targets")
        if self.root is None and self.present is None:
            raise ValueError("targets without the root that names their keys")

    @classmethod
    def parse(cls, data: bytes, what: str) -> Draft:
        """Return the draft in ``data``. Raise ``InvalidRequest`` that names ``what``."""
        try:
            return build(cls, parse_json(data, limit=MAX_DRAFT_BYTES, what="draft"))
        except ValueError as error:
            raise InvalidRequest(
                f"{what}: not a draft: {str(error)[:200]}", "--draft of the other commands writes one"
            ) from None

    def encode(self) -> bytes:
        """Return the text of the draft's file."""
        fields = {name: getattr(self, name) for name in ("format", "registry", "present", "root", "targets")}
        present = {name: value for name, value in fields.items() if value is not None}
        return (json.dumps(present, indent=1) + "\n").encode()

    @property
    def present_root(self) -> Root | None:
        """Return the root that clients have now."""
        return None if self.present is None else read_root(self.present.encode(), "the present root").signed

    @property
    def next_root(self) -> Root:
        """Return the root that clients will have: the draft's, else the present one."""
        text = self.root or self.present
        assert text is not None
        return read_root(text.encode()).signed

    def counts(self) -> list[Count]:
        """Count the signatures that are needed, for each file and each root that demands them."""
        counts, present, following = [], self.present_root, self.next_root
        if self.root is not None:
            root = read_root(self.root.encode())
            what = f"root {root.signed.version}"
            if present is not None:
                counts.append(_count(root, present, "root", what))
            counts.append(_count(root, following, "root", what))
        if self.targets is not None:
            targets = read_targets(self.targets.encode())
            counts.append(_count(targets, following, "targets", f"targets {targets.signed.version}"))
        return counts

    @property
    def is_complete(self) -> bool:
        """Return whether no signature is missing."""
        return all(count.signatures >= count.threshold for count in self.counts())

    def sign_all(self, keys: Iterable[SigningKey], role: str) -> Draft:
        """Return the draft with the signatures of all ``keys`` of one role. Raise as `sign`."""
        return functools.reduce(lambda draft, key: draft.sign(key, role), keys, self)

    def sign(self, key: SigningKey, role: str) -> Draft:
        """Return the draft with the signature of a key of the root or of the targets. Raise
        ``InvalidRequest`` for a key that the role does not name."""
        present, following = self.present_root, self.next_root
        text = self.root if role == "root" else self.targets
        if text is None:
            raise InvalidRequest(f"the draft has no {role} to sign")
        signers = [root for root in (present, following) if root is not None and role == "root"]
        public = _key_of(key, signers or [following], role)
        if public is None:
            other = "targets" if role == "root" else "root"
            both = [root for root in (present, following) if root is not None]
            has_other = _key_of(key, both, other) is not None
            raise InvalidRequest(
                f"{key.public} is no key of {role}" + (f", but one of {other}" if has_other else ""),
                f"--{other}-key takes it" if has_other else "use the key file of a holder of that role",
            )
        metadata: Metadata[Any] = (read_root if role == "root" else read_targets)(text.encode())
        metadata.sign(signer(key, public), append=True)
        signed = metadata.to_bytes().decode()
        return replace(self, root=signed) if role == "root" else replace(self, targets=signed)


def _key_of(key: SigningKey, roots: Iterable[Root], role: str) -> Key | None:
    """Return a key as a role of one of the roots names it."""
    for root in roots:
        for keyid in root.roles[role].keyids:
            named = root.keys.get(keyid)
            if named is not None and public_key(named) == key.public:
                return named
    return None


def _count(file: Metadata[Any], root: Root, role: str, what: str) -> Count:
    result = root.get_verification_result(role, file.signed_bytes, file.signatures)
    return Count(what, f"root {root.version}", len(result.signed), result.threshold)
