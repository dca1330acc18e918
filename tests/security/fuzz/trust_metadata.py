"""Fuzzes the trust metadata of a registry: files that its keys signed, and files altered afterwards."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner

from cachesvc.schema.access import SignerRecord
from cachesvc.tuf import files
from cachesvc.tuf.files import RoleKeys
from cachesvc.tuf.keys import signer
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust_root.policy import SignerPolicy
from cachesvc_client.trust_root.signed import canonical_json
from cachesvc_client.trust_root.updater import TrustMetadata, Updater
from cachesvc_client.wire.errors import Corrupt, NotFound, Untrusted
from cachesvc_client.wire.manifest.records import Statement
from cachesvc_client.wire.names import Namespace, ShortName, Tag, Target

from .choices import mutate, mutate_bytes
from .parsers import Check, Parser, described

NOW = 1_800_000_000
SEEN = 5
"""The version of timestamp, snapshot and targets that the node has."""
STRANGER = SigningKey.generate().public
STATEMENT = Statement(Namespace("team"), ShortName("bert"), Target("bert"), NOW * 1000, Tag("latest"))
Role = dict[str, Any]


class Node(dict[str, bytes]):
    """The files of a node, in memory."""

    def read(self, name: str) -> bytes | None:
        """Returns a file, or ``None``."""
        return self.get(name)

    def write(self, name: str, data: bytes) -> None:
        """Keeps a file."""
        self[name] = data

    def remove(self, name: str) -> None:
        """Forgets a file."""
        self.pop(name, None)


class Registry:
    """Signs metadata of any content with the keys of a registry whose root the node has pinned."""

    def __init__(self) -> None:
        root, targets_key, online = (SigningKey.generate() for _ in range(3))
        keys = {"root": root, "targets": targets_key, "snapshot": online, "timestamp": online}
        self._signers = {role: signer(key) for role, key in keys.items()}
        roles = {role: RoleKeys((key.public,)) for role, key in keys.items()}
        team = SignerRecord("team", SigningKey.generate().public)
        targets = files.make_targets(SEEN, NOW, [team], [], self._by("targets"), {"team": 86_400})
        snapshot = files.make_snapshot(SEEN, NOW, SEEN, targets, self._by("snapshot"))
        self.pinned = files.make_root(1, NOW, roles, self._by("root"))
        self.good: dict[str, bytes] = {
            "timestamp": files.make_timestamp(SEEN, NOW, SEEN, snapshot, self._by("timestamp")),
            "snapshot": snapshot,
            "targets": targets,
            "root": files.make_root(2, NOW, roles, self._by("root")),
        }

    def _by(self, role: str) -> list[CryptoSigner]:
        return [self._signers[role]]

    def sign(self, role: str, content: Any) -> bytes:
        """Returns a file of a role with ``content``, which may be anything."""
        try:
            message = canonical_json(content)
        except (ValueError, TypeError, RecursionError):
            message = b"no canonical form"
        signature = self._signers[role].sign(message)
        entry = {"keyid": signature.keyid, "sig": signature.signature}
        return json.dumps({"signatures": [entry], "signed": content}).encode()

    def naming(self, role: str, content: Role, name: str, data: bytes) -> bytes:
        """Returns the next file of ``role``, with the length, hash and version of the file ``name``."""
        info = {"length": len(data), "hashes": {"sha256": hashlib.sha256(data).hexdigest()}}
        version = _version(data)
        meta = {name: {**info, "version": version}}
        return self.sign(role, {**content, "version": SEEN + 1, "meta": meta})


def _version(data: bytes) -> int:
    version = _content(data).get("version")
    return version if isinstance(version, int) and not isinstance(version, bool) and version > 0 else SEEN


def _content(data: bytes) -> Role:
    """Returns what is signed in a file; nothing where the file is none."""
    try:
        content = json.loads(data)["signed"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def open_metadata(folder: Path) -> Iterator[Check]:
    """Yields the check of metadata: what is accepted is current, not older than what the node has seen, and
    gives rights to nobody whom it does not name."""
    del folder  # the files of this registry are in memory
    registry = Registry()

    def one(choose: random.Random) -> str:
        role = choose.choice(("timestamp", "snapshot", "targets", "targets", "root"))
        altered = choose.randint(0, 3) == 0
        served = dict(registry.good)
        if altered:
            served[role] = mutate_bytes(choose, served[role])
        else:
            served[role] = registry.sign(role, mutate(choose, _content(served[role])))
        _name(registry, served, role)
        node = Node({f"{name}.json": data for name, data in registry.good.items() if name != "root"})
        try:
            metadata = Updater(registry.pinned, node, "https://registry", NOW).refresh(_fetch(served))
        except (Untrusted, Corrupt) as error:
            return described(error)
        if altered:
            content = _content(served[role])
            assert content == _content(registry.good[role]), "altered bytes count"
        _judge(metadata)
        return f"accepted: {role} {altered}"

    yield one


def _name(registry: Registry, served: dict[str, bytes], role: str) -> None:
    """Signs anew what names a changed file, so that the file itself is read."""
    if role == "targets":
        content = _content(served["snapshot"])
        served["snapshot"] = registry.naming("snapshot", content, "targets.json", served["targets"])
    if role in ("targets", "snapshot"):
        content = _content(served["timestamp"])
        served["timestamp"] = registry.naming("timestamp", content, "snapshot.json", served["snapshot"])


def _fetch(served: dict[str, bytes]) -> Any:
    def fetch(name: str, limit: int) -> bytes:
        role = name.removesuffix(".json").rpartition(".")[2]
        if name.endswith("root.json") and name != "2.root.json":
            raise NotFound(name)
        if len(served[role]) > limit:
            raise Corrupt(f"{name}: more than {limit} bytes")
        return served[role]

    return fetch


def _judge(metadata: TrustMetadata) -> None:
    for common in (metadata.root.common, metadata.timestamp.common, metadata.snapshot.common):
        assert common.expires > NOW, "the time of a file is over"
    assert metadata.targets.common.expires > NOW
    assert metadata.timestamp.common.version >= SEEN, "an older timestamp"
    assert metadata.snapshot.files["targets.json"].version >= SEEN, "older targets"
    policy = SignerPolicy(metadata.targets, "https://registry")
    try:
        policy.check(STATEMENT, [STRANGER])
    except Untrusted as error:
        described(error)
    else:
        raise AssertionError("a key that no role names signs for a namespace")


PARSERS = (Parser("metadata", open_metadata, 10),)
