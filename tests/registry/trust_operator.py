"""Stand for an operator who holds the keys of root and targets, beside a registry in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from registry_inside import ROOT, Inside

from cachesvc.registry.trust import changes as trust_changes
from cachesvc.registry.trust import metadata
from cachesvc.schema.trust_changes import RootRequest, TargetsRequest, TrustState
from cachesvc.tuf import changes, files
from cachesvc.tuf.draft import Draft
from cachesvc.tuf.files import RoleKeys
from cachesvc.tuf.keys import TrustKeys
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.trust_root.updater import TrustMetadata, Updater
from tests.trust_root.repository import Files


def generate(number: int) -> list[SigningKey]:
    return [SigningKey.generate() for _ in range(number)]


def role_keys(keys: list[SigningKey], threshold: int = 1) -> RoleKeys:
    return RoleKeys(tuple(key.public for key in keys), threshold)


@dataclass
class Operator:
    """Holds three keys of a root, of which two must sign, and one of the targets."""

    reg: Inside
    root: list[SigningKey] = field(default_factory=lambda: generate(3))
    targets: list[SigningKey] = field(default_factory=lambda: generate(1))

    @classmethod
    def with_online_key(cls, reg: Inside, online: SigningKey) -> Operator:
        """Give the registry an online key in its settings, and no other."""
        reg.registry = replace(reg.registry, trust_keys=TrustKeys(None, online))
        return cls(reg)

    @property
    def now(self) -> int:
        return int(self.reg.clock.now)

    def file(self, name: str) -> bytes:
        return metadata.read_file(self.reg.registry, ROOT, name)

    def state(self) -> TrustState:
        return trust_changes.read_state(self.reg.registry, ROOT)

    def present(self, role: str) -> str:
        """Return the newest file of a role as the registry has it."""
        with self.reg.registry.index.read() as unit:
            return unit.trust.newest(role).data.decode()

    def roles(self) -> dict[str, RoleKeys]:
        online = self.state().online
        assert online is not None
        key = RoleKeys((PublicKey(online),))
        own = {"root": role_keys(self.root, 2), "targets": role_keys(self.targets)}
        return {**own, "snapshot": key, "timestamp": key}

    def first(self, signers: tuple[Any, ...] = ()) -> Draft:
        """Return root 1 with targets, without signatures."""
        root = changes.next_root(None, self.now, self.roles())
        targets = files.make_targets(1, self.now, signers, [], [])
        return Draft("here", root=root.decode(), targets=targets.decode())

    def next_root(self, roles: dict[str, RoleKeys]) -> Draft:
        present = self.present("root")
        return Draft("here", present, changes.next_root(present.encode(), self.now, roles).decode())

    def next_targets(self, change: Callable[[Any], Any] = lambda _: None) -> Draft:
        data, _ = changes.next_targets(self.present("targets").encode(), self.now, change)
        return Draft("here", self.present("root"), targets=data.decode())

    def signed(self, draft: Draft, root: list[SigningKey] | None = None) -> Draft:
        """Return a draft with the signatures of two holders of the root and of the targets' key."""
        if draft.root is not None:
            for key in self.root[:2] if root is None else root:
                draft = draft.sign(key, "root")
        if draft.targets is not None:
            draft = draft.sign(self.targets[0], "targets")
        return draft

    def put(self, draft: Draft, token: Any = ROOT) -> TrustState:
        if draft.root is not None:
            request = RootRequest(draft.root, draft.targets)
            return trust_changes.put_root(self.reg.registry, token, request)
        assert draft.targets is not None
        return trust_changes.put_targets(self.reg.registry, token, TargetsRequest(draft.targets))

    def refresh(self, local: Files, pinned: bytes | None = None) -> TrustMetadata:
        """Bring a client's files up to date, from the root that it has pinned."""
        return Updater(pinned or self.file("1.root.json"), local, "here", self.now).refresh(
            lambda name, _limit: self.file(name)
        )

    def everything(self) -> list[Any]:
        """Return all files of trust metadata and all rows of the audit log that the registry has."""
        with self.reg.registry.index.read() as unit:
            kept = [unit.trust.newest(role) for role in files.LIFETIME]
            return [kept, unit.audit.page("*", None, 1000, None, None)]


def own_keys(reg: Inside, folder: Path) -> Inside:
    """Let a registry make its own root, with keys in a folder."""
    reg.registry = replace(reg.registry, trust_keys=TrustKeys(folder))
    metadata.prepare(reg.registry)
    return reg
