"""Attacks on root and targets that an operator signs offline: with a stolen admin token, a stolen online
key, an old draft, too few keys, and a registry that deceives the operator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from registry_inside import ROOT, START, Clock, inside
from trust_operator import Operator, generate, role_keys

from cachesvc.domain.access import ANY, Role, Token
from cachesvc.registry.trust import changes as trust_changes
from cachesvc.registry.trust import metadata as trust
from cachesvc.registry.trust import signers
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.trust_changes import KeysRequest
from cachesvc.tuf import changes, files
from cachesvc.tuf.draft import Draft
from cachesvc.tuf.keys import TrustKeys, signer
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust_root import registry_metadata
from cachesvc_client.trust_root.policy import SignerPolicy
from cachesvc_client.trust_root.registry_metadata import read_root_to_sign, read_to_sign
from cachesvc_client.trust_root.updater import Updater
from cachesvc_client.wire.errors import CacheSvcError, HeadConflict, Untrusted
from cachesvc_client.wire.manifest.records import Statement
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Target
from cachesvc_client.wire.requests.protocol import TrustAnswer
from tests.trust_root.repository import Files

STOLEN = Token("t-stolen", "stolen", Role.admin, ANY)


@pytest.fixture
def online() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def operator(tmp_path: Path, online: SigningKey) -> Iterator[Operator]:
    with inside(tmp_path, SigningKey.generate(), Clock()) as reg:
        holder = Operator.with_online_key(reg, online)
        holder.put(holder.signed(holder.first((SignerRecord(ANY, reg.key.public),))))
        yield holder


@pytest.fixture
def thief(operator: Operator) -> Operator:
    """Somebody at the same registry who has no key of the operator's."""
    return Operator(operator.reg)


def statement(lane: str | None = None) -> Statement:
    return Statement(Namespace("team"), ShortName("bert"), Target("t"), 1, lane=Lane(lane) if lane else None)


def accepts(metadata: Any, key: SigningKey, lane: str | None = None) -> bool:
    try:
        SignerPolicy(metadata.targets, "here").check(statement(lane), [key.public])
    except Untrusted:
        return False
    return True


def naming(key: SigningKey) -> Any:
    """A change of the targets that lets a key sign for every namespace."""
    return lambda targets: changes.delegate(targets, "*", None, [key.public], [], None)


def revoking(key: SigningKey) -> Any:
    """A change of the targets that revokes a key."""
    return lambda targets: changes.revoke(targets, key.public, START, "leaked")


def test_a_stolen_admin_token_names_no_signer_and_no_root(operator: Operator, thief: Operator) -> None:
    """It changes the index, which services with a pinned root do not follow."""
    local, key = Files(), SigningKey.generate()
    operator.refresh(local)
    registry = operator.reg.registry
    signers.add_signer(registry, STOLEN, SignerRecord(ANY, key.public))
    trust.prepare(registry)
    before = operator.everything()
    own_root = thief.next_root({"root": role_keys(thief.root, 2), "targets": role_keys(thief.targets)})
    own_root = replace(own_root, targets=thief.next_targets(naming(key)).targets)
    unsigned = operator.next_targets(naming(key))
    first = changes.next_root(None, START, thief.roles()).decode()
    tries = (
        thief.signed(own_root),
        thief.signed(replace(own_root, present=None)),
        thief.signed(Draft("here", root=first, targets=own_root.targets)),
        unsigned,
        replace(unsigned, targets=_signed_by(unsigned.targets, thief.targets[0])),
    )
    for draft in tries:
        with pytest.raises(CacheSvcError):
            operator.put(draft, STOLEN)
    for names in (("root",), ("targets",), ("root", "targets", "online"), ("online",)):
        with pytest.raises(CacheSvcError):
            trust_changes.make_keys(registry, STOLEN, KeysRequest(names))
    assert operator.everything() == before
    metadata = operator.refresh(local)
    assert not accepts(metadata, key) and accepts(metadata, operator.reg.key)


def _signed_by(text: str | None, key: SigningKey) -> str:
    """Targets with the signature of a key that no root names."""
    assert text is not None
    value = json.loads(text)
    other = json.loads(files.make_targets(1, START, [], [], [signer(key)]))
    value["signatures"] = other["signatures"]
    return json.dumps(value)


def test_a_stolen_online_key_names_no_signer(operator: Operator, online: SigningKey) -> None:
    """The thief has the network too, and signs a snapshot of targets of their own."""
    local, key = Files(), SigningKey.generate()
    operator.refresh(local)
    served = _forged(operator, online, START + 1, naming(key))
    with pytest.raises(Untrusted, match=r"targets\.json: signed by 0 of the keys"):
        _served(operator, local, served)
    assert not accepts(operator.refresh(Files()), key)


def test_a_stolen_online_key_that_raised_all_versions_is_recovered_from(
    operator: Operator, online: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_metadata, "time", SimpleNamespace(time=operator.reg.clock))
    local, pinned, store = Files(), tmp_path / "root.json", tmp_path / "trust"
    pinned.write_bytes(operator.file("1.root.json"))
    operator.refresh(local)
    served = _forged(operator, online, 2**40, None)
    _served(operator, local, served)  # the client has seen the far versions; so has the operator
    read_to_sign(pinned, store, Deceiver(operator, served))  # type: ignore[arg-type]
    with pytest.raises(Untrusted, match="this node has seen version"):
        read_to_sign(pinned, store, Deceiver(operator))  # type: ignore[arg-type]
    honest = Deceiver(operator)
    assert read_root_to_sign(pinned, store, honest) == pinned.read_bytes()  # type: ignore[arg-type]
    with pytest.raises(Untrusted, match="this node has seen version"):
        operator.refresh(local)
    new = SigningKey.generate()
    operator.reg.registry = replace(operator.reg.registry, trust_keys=TrustKeys(None, new))
    key = role_keys([new])
    operator.put(operator.signed(operator.next_root({"snapshot": key, "timestamp": key})))
    assert operator.refresh(local).timestamp.common.version < 2**40
    with pytest.raises(Untrusted):
        _served(operator, local, _forged(operator, online, 2**41, None))


def _forged(operator: Operator, online: SigningKey, version: int, change: Any) -> dict[str, bytes]:
    """Snapshot and timestamp of a thief who has the online key, and targets if they are changed."""
    present = operator.present("targets").encode()
    targets = present if change is None else changes.next_targets(present, START, change)[0]
    number = json.loads(targets)["signed"]["version"]
    sign = [signer(online)]
    snapshot = files.make_snapshot(version, operator.now, number, targets, sign)
    timestamp = files.make_timestamp(version, operator.now, version, snapshot, sign)
    names = {f"{version}.snapshot.json": snapshot, f"{number}.targets.json": targets}
    return {**names, "timestamp.json": timestamp}


def _served(operator: Operator, local: Files, served: dict[str, bytes]) -> None:
    """Let a client ask somebody who answers with files of their own where they have one."""
    Updater(operator.file("1.root.json"), local, "here", operator.now).refresh(
        lambda name, _limit: served[name] if name in served else operator.file(name)
    )


def test_a_draft_from_before_a_revocation_is_not_replayed(operator: Operator) -> None:
    leaked = operator.reg.key
    old = operator.signed(operator.next_targets())
    old_root = operator.signed(operator.next_root({}))
    operator.reg.clock.now += 60
    operator.put(operator.signed(operator.next_root({"root": role_keys(operator.root, 1)})))
    operator.put(
        operator.signed(
            operator.next_targets(lambda one: changes.revoke(one, leaked.public, START, "leaked"))
        )
    )
    before = operator.everything()
    for draft in (old, old_root):
        with pytest.raises(HeadConflict):
            operator.put(draft, STOLEN)
    assert operator.everything() == before
    assert not accepts(operator.refresh(Files()), leaked)


def test_targets_that_too_few_holders_signed_are_refused(operator: Operator) -> None:
    holders = generate(3)
    moved = operator.next_root({"targets": role_keys(holders, 2)})
    operator.targets = holders
    moved = replace(moved, targets=operator.next_targets().targets)
    operator.put(operator.signed(moved).sign(holders[1], "targets"))
    before, thief = operator.everything(), SigningKey.generate()
    draft = operator.next_targets(naming(thief))
    once = draft.sign(holders[0], "targets")
    doubled = json.loads(once.targets or "")
    doubled["signatures"] *= 2
    for each in (draft, once, replace(once, targets=json.dumps(doubled))):
        with pytest.raises(Untrusted):
            operator.put(each, STOLEN)
    assert operator.everything() == before


def test_a_builder_of_a_lane_rule_signs_nothing_of_the_trunk(operator: Operator) -> None:
    robot = SigningKey.generate()
    rule = operator.next_targets(
        lambda targets: changes.delegate(targets, "team", "pr-*", [robot.public], [], None)
    )
    operator.put(operator.signed(rule))
    metadata = operator.refresh(Files())
    assert accepts(metadata, robot, "pr-7")
    assert not accepts(metadata, robot) and not accepts(metadata, robot, "nightly")


class Deceiver:
    """A registry that shows an operator what it likes."""

    url = "https://cache.example"

    def __init__(self, operator: Operator, forged: Mapping[str, bytes] | None = None) -> None:
        files = trust.read_update(operator.reg.registry, ROOT, 0, 0, 0).files
        shown = {name: data.decode() for name, data in (forged or {}).items()}
        self._answer = TrustAnswer(files={**files, **shown})

    def call(self, method: str, path: str, *_: Any, **__: Any) -> TrustAnswer:
        assert method == "GET" and path.startswith("/v1/trust/update?")
        return self._answer


def test_an_operator_signs_nothing_that_follows_from_older_targets(
    operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry shows targets from before a revocation, so that the next ones name the key again."""
    monkeypatch.setattr(registry_metadata, "time", SimpleNamespace(time=operator.reg.clock))
    pinned, store = tmp_path / "root.json", tmp_path / "trust"
    pinned.write_bytes(operator.file("1.root.json"))
    old = Deceiver(operator)
    assert read_to_sign(pinned, store, old)[1].decode() == operator.present("targets")  # type: ignore[arg-type]
    leaked = operator.reg.key.public
    operator.put(
        operator.signed(
            operator.next_targets(lambda one: changes.revoke(one, leaked, operator.now, "leaked"))
        )
    )
    new = Deceiver(operator)
    assert b"leaked" in read_to_sign(pinned, store, new)[1]  # type: ignore[arg-type]
    with pytest.raises(Untrusted, match="this node has seen version"):
        read_to_sign(pinned, store, old)  # type: ignore[arg-type]
    operator.reg.clock.now += 400 * 86_400  # after their time the operator signs them anew
    expired = read_to_sign(pinned, store, Deceiver(operator))  # type: ignore[arg-type]
    assert expired == tuple(operator.present(role).encode() for role in ("root", "targets"))
