"""The registry's trust metadata: python-tuf and the client read what the registry signs."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from registry_inside import ROOT, START, Clock, Column, Inside, inside
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.config import EnvelopeType

from cachesvc.domain.access import ANY
from cachesvc.registry.trust import metadata as trust
from cachesvc.registry.trust import signers as registry_signers
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.revocations import RevocationRequest
from cachesvc.tuf.keys import TrustKeys
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.trust_root.metadata import REVOKED
from cachesvc_client.trust_root.policy import SignerPolicy, fits
from cachesvc_client.trust_root.updater import TrustMetadata, Updater
from cachesvc_client.wire.errors import NotFound, Untrusted
from cachesvc_client.wire.manifest.records import Statement
from cachesvc_client.wire.names import Namespace, ShortName, Target
from tests.trust_root.repository import Files

DAY = 86_400
PATH = "team/trunk/bert/latest"


@pytest.fixture
def inner(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as reg:
        reg.registry = replace(reg.registry, trust_keys=TrustKeys(tmp_path))
        trust.prepare(reg.registry)
        yield reg


def file(reg: Inside, name: str) -> bytes:
    return trust.read_file(reg.registry, ROOT, name)


def fetch(reg: Inside):  # type: ignore[no-untyped-def]
    return lambda name, _limit: file(reg, name)


def refresh(reg: Inside, local: Files) -> TrustMetadata:
    return Updater(file(reg, "1.root.json"), local, "here", reg.clock.now).refresh(fetch(reg))


def signers(reg: Inside, local: Files, path: str = PATH) -> set[PublicKey]:
    targets = refresh(reg, local).targets
    roles = [one.role for one in targets.delegations if any(fits(path, pattern) for pattern in one.paths)]
    keys = {targets.keys[keyid].signer for role in roles for keyid in role.keyids}
    return {key for key in keys if key is not None}


def test_python_tuf_reads_what_the_registry_signs(inner: Inside) -> None:
    trusted = TrustedMetadataSet(file(inner, "1.root.json"), EnvelopeType.METADATA)
    timestamp = trusted.update_timestamp(file(inner, "timestamp.json"))
    snapshot = trusted.update_snapshot(file(inner, f"{timestamp.snapshot_meta.version}.snapshot.json"))
    name = f"{snapshot.meta['targets.json'].version}.targets.json"
    targets = trusted.update_delegated_targets(file(inner, name), "targets", "root")
    assert targets.delegations is not None and targets.delegations.roles is not None
    assert list(targets.delegations.roles) == ["every-namespace"]
    assert targets.delegations.roles["every-namespace"].is_delegated_path(PATH)


def test_an_older_registry_gets_metadata_with_its_signers(tmp_path: Path, column: Column) -> None:
    key = SigningKey.generate()
    with inside(tmp_path, key, Clock(), column=column) as reg:
        assert trust.prepare(reg.registry) == ()
        with pytest.raises(NotFound, match="no such file"):
            file(reg, "1.root.json")
        with pytest.raises(NotFound, match="no trust metadata"):
            trust.read_update(reg.registry, ROOT, 0, 0, 0)
        team = SigningKey.generate()
        registry_signers.add_signer(reg.registry, None, SignerRecord("team", team.public))
        reg.registry = replace(reg.registry, trust_keys=TrustKeys(tmp_path))
        [root_key] = trust.prepare(reg.registry)
        assert trust.prepare(reg.registry) == (root_key,)
        assert signers(reg, Files()) == {key.public, team.public}
        assert signers(reg, Files(), "other/trunk/bert/latest") == {key.public}
        assert signers(reg, Files(), "team/lane/pr-1/bert/latest") == {key.public, team.public}


def test_targets_follow_the_signers(inner: Inside) -> None:
    local, team = Files(), SigningKey.generate()
    assert signers(inner, local) == {inner.key.public}
    registry_signers.add_signer(inner.registry, ROOT, SignerRecord("team", team.public))
    assert signers(inner, local) == {inner.key.public, team.public}
    registry_signers.remove_signer(inner.registry, ROOT, "team", team.public)
    assert signers(inner, local) == {inner.key.public}
    [revoked] = refresh(inner, local).targets.revoked
    assert (revoked.key, revoked.at) == (team.public, START)
    inner.clock.now += 60
    registry_signers.remove_signer(inner.registry, ROOT, ANY, inner.key.public)
    listed = {one.key: one.at for one in refresh(inner, local).targets.revoked}
    assert listed == {team.public: START, inner.key.public: START + 60}
    registry_signers.add_signer(inner.registry, ROOT, SignerRecord("team", team.public))
    assert signers(inner, local) == {team.public}
    assert [one.key for one in refresh(inner, local).targets.revoked] == [inner.key.public]


def test_a_revocation_is_listed_with_its_reason_and_its_namespace(inner: Inside) -> None:
    local, key = Files(), inner.key.public
    revoke = registry_signers.revoke_signer
    revoke(inner.registry, ROOT, RevocationRequest(key, "team", "of one team"))
    metadata = refresh(inner, local)
    [revoked] = metadata.targets.revoked
    assert (revoked.key, revoked.namespace, revoked.reason) == (key, "team", "of one team")
    policy = SignerPolicy(metadata.targets, "here")
    assert policy.check(statement("other"), [key]) == key
    with pytest.raises(Untrusted, match=r"here revoked on .*: of one team"):
        policy.check(statement("team"), [key])
    revoke(inner.registry, ROOT, RevocationRequest(key, ANY, "leaked"))
    policy = SignerPolicy(refresh(inner, local).targets, "here")
    with pytest.raises(Untrusted, match=r"here revoked on .*: leaked"):
        policy.check(statement("other"), [key])
    registry_signers.add_signer(inner.registry, ROOT, SignerRecord(ANY, key), again=True)
    registry_signers.add_signer(inner.registry, ROOT, SignerRecord("team", key), again=True)
    metadata = refresh(inner, local)
    assert metadata.targets.revoked == ()
    assert SignerPolicy(metadata.targets, "here").check(statement("team"), [key]) == key


def statement(namespace: str) -> Statement:
    return Statement(Namespace(namespace), ShortName("bert"), Target("t"), 1)


def test_an_update_holds_what_the_client_lacks(inner: Inside) -> None:
    def names(*versions: int) -> list[str]:
        return sorted(trust.read_update(inner.registry, ROOT, *versions).files)

    first = [f"{START}.snapshot.json", f"{START}.targets.json", "timestamp.json"]
    assert names(0, 0, 0) == ["1.root.json", *first]
    assert names(1, 0, START) == [first[0], "timestamp.json"]
    assert names(1, START, START) == ["timestamp.json"]
    registry_signers.add_signer(inner.registry, ROOT, SignerRecord("team", SigningKey.generate().public))
    second = [f"{START + 1}.snapshot.json", f"{START + 1}.targets.json", "timestamp.json"]
    assert names(1, START, START) == second


def test_old_files_are_removed_and_roots_stay(inner: Inside) -> None:
    local = Files()
    for number in range(20):
        registry_signers.add_signer(inner.registry, ROOT, SignerRecord("team", inner.key.public, str(number)))
    assert refresh(inner, local).targets.common.version == START + 20
    assert file(inner, "1.root.json") and file(inner, f"{START + 11}.targets.json")
    with pytest.raises(NotFound):
        file(inner, f"{START + 10}.targets.json")


def test_each_file_is_signed_anew_before_its_time_is_over(inner: Inside) -> None:
    local = Files()
    refresh(inner, local)
    for days, changed in ((3, set()), (4, {"timestamp"}), (16, {"timestamp", "snapshot"})):
        before = {role: json.loads(data)["signed"]["version"] for role, data in local.files.items()}
        inner.clock.now = START + days * DAY
        refresh(inner, local)
        after = {role: json.loads(data)["signed"]["version"] for role, data in local.files.items()}
        assert {role.removesuffix(".json") for role in after if after[role] != before.get(role)} == changed
    inner.clock.now = START + 200 * DAY
    trusted = refresh(inner, local)
    assert (trusted.root.common.version, trusted.targets.common.version) == (2, START + 200 * DAY)
    inner.clock.now = START + 600 * DAY  # nobody asked for a year; the next request signs all anew
    assert refresh(inner, local).root.common.version == 3


def test_keys_that_the_root_does_not_name_sign_nothing(
    inner: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    before = file(inner, "timestamp.json")
    inner.registry = replace(inner.registry, trust_keys=TrustKeys(tmp_path / "other"))
    inner.clock.now += 5 * DAY
    with caplog.at_level(logging.WARNING):
        assert file(inner, "timestamp.json") == before
    assert "the root names other keys" in caplog.text
    registry_signers.add_signer(inner.registry, ROOT, SignerRecord("team", SigningKey.generate().public))
    trust.prepare(inner.registry)
    assert file(inner, "timestamp.json") == before


@pytest.mark.parametrize(
    "name",
    ["root.json", "0.root.json", "1.timestamp.json", "2.root.json", "1.root.json/", "..", "1.any.json", "é"],
)
def test_other_names_do_not_exist(inner: Inside, name: str) -> None:
    with pytest.raises(NotFound):
        file(inner, name)


def test_a_start_from_a_backup_is_newer_than_what_clients_saw(tmp_path: Path) -> None:
    data, local, clock, key = tmp_path / "data", Files(), Clock(), SigningKey.generate()
    data.mkdir()

    def opened() -> AbstractContextManager[Inside]:
        return inside(data, key, clock)

    def start(reg: Inside) -> None:
        reg.registry = replace(reg.registry, trust_keys=TrustKeys(data))
        trust.prepare(reg.registry)

    with opened() as reg:
        start(reg)
        refresh(reg, local)
    shutil.copytree(data, tmp_path / "backup")
    clock.now += DAY
    with opened() as reg:
        start(reg)
        for _ in range(5):
            registry_signers.add_signer(
                reg.registry, ROOT, SignerRecord("team", SigningKey.generate().public)
            )
            refresh(reg, local)
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "backup", data)
    clock.now += 60
    with opened() as reg:
        start(reg)
        assert signers(reg, local) == {key.public}


def test_an_older_timestamp_is_a_rollback_to_clients(inner: Inside) -> None:
    local = Files()
    refresh(inner, local)
    old = file(inner, "timestamp.json")
    registry_signers.add_signer(inner.registry, ROOT, SignerRecord("team", SigningKey.generate().public))
    refresh(inner, local)
    with pytest.raises(Untrusted, match="a rolled-back registry"):
        Updater(file(inner, "1.root.json"), local, "here", START).refresh(
            lambda name, _limit: old if name == "timestamp.json" else file(inner, name)
        )


def test_the_list_of_the_revoked_is_signed(inner: Inside) -> None:
    registry_signers.remove_signer(inner.registry, ROOT, ANY, inner.key.public)
    signed = json.loads(file(inner, f"{START + 1}.targets.json"))["signed"]
    assert signed[REVOKED] == [{"key": inner.key.public, "at": START, "reason": ""}]
