"""A TUF repository whose files python-tuf signs, so that the client's reader is held against another
author's."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from datetime import datetime, timezone

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    Targets,
    Timestamp,
)

from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.trust_root.updater import TrustMetadata, Updater
from cachesvc_client.wire.errors import NotFound

URL = "https://registry.example"
NOW = 1_800_000_000
DAY = 86_400


def time_of(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=0)


class Files:
    """Local files in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def remove(self, name: str) -> None:
        self.files.pop(name, None)


class Repository:
    """Makes and publishes metadata. ``served``: files by name, as a registry gives them."""

    def __init__(self) -> None:
        expires = time_of(NOW + 365 * DAY)
        self.root = Root(expires=expires, consistent_snapshot=True)
        self.timestamp = Timestamp(expires=time_of(NOW + 7 * DAY))
        self.snapshot = Snapshot(expires=time_of(NOW + 30 * DAY))
        self.targets = Targets(expires=expires, delegations=Delegations({}, {}))
        self.signers: dict[str, list[CryptoSigner]] = {}
        self.previous_root_signers: list[CryptoSigner] = []
        self.served: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.hashes = True
        for role in ("root", "timestamp", "snapshot", "targets"):
            self.set_keys(role, 1)
        self.publish("root", "targets", "snapshot", "timestamp", raised=False)

    def set_keys(self, role: str, number: int, threshold: int = 1) -> None:
        """Gives a role new keys."""
        if role == "root":
            self.previous_root_signers = self.signers.get("root", [])
        for keyid in list(self.root.roles[role].keyids):
            self.root.revoke_key(keyid, role)
        self.signers[role] = [CryptoSigner.generate_ed25519() for _ in range(number)]
        for signer in self.signers[role]:
            self.root.add_key(signer.public_key, role)
        self.root.roles[role].threshold = threshold

    def delegate(
        self,
        name: str,
        keys: Iterable[SigningKey],
        paths: list[str],
        threshold: int = 1,
        terminating: bool = False,
    ) -> None:
        assert self.targets.delegations is not None and self.targets.delegations.roles is not None
        self.targets.delegations.roles[name] = DelegatedRole(name, [], threshold, terminating, paths)
        for key in keys:
            self.targets.add_key(tuf_key(key.public), name)

    def publish(self, *roles: str, raised: bool = True) -> None:
        """Signs and serves new versions of ``roles``, in this order."""
        for role in roles:
            signed = getattr(self, role)
            if raised:
                signed.version += 1
            if role == "snapshot":
                signed.meta["targets.json"] = self.info("targets", self.targets.version)
            if role == "timestamp":
                signed.snapshot_meta = self.info("snapshot", self.snapshot.version)
            name = "timestamp.json" if role == "timestamp" else f"{signed.version}.{role}.json"
            self.served[name] = self.sign(role)
        self.previous_root_signers = []

    def sign(self, role: str) -> bytes:
        metadata = Metadata(getattr(self, role))
        signers = self.signers[role] + (self.previous_root_signers if role == "root" else [])
        for signer in signers:
            metadata.sign(signer, append=True)
        return metadata.to_bytes()

    def info(self, role: str, version: int) -> MetaFile:
        data = self.served.get(f"{version}.{role}.json")
        if data is None or not self.hashes:
            return MetaFile(version)
        return MetaFile(version, len(data), {"sha256": hashlib.sha256(data).hexdigest()})

    def fetch(self, name: str, limit: int) -> bytes:
        """Gives ``limit`` bytes and one more, as a client's download does before it refuses."""
        self.asked.append(name)
        if name not in self.served:
            raise NotFound(name)
        return self.served[name][: limit + 1]

    @property
    def pinned(self) -> bytes:
        return self.served["1.root.json"]

    def refresh(self, local: Files, now: float = NOW, pinned: bytes | None = None) -> TrustMetadata:
        return Updater(pinned or self.pinned, local, URL, now).refresh(self.fetch)


def tuf_key(public: PublicKey):  # type: ignore[no-untyped-def]
    from securesystemslib.signer import SSlibKey

    raw = base64.b64decode(public.removeprefix("ed25519:"))
    return SSlibKey(hashlib.sha256(raw).hexdigest(), "ed25519", "ed25519", {"public": raw.hex()})
