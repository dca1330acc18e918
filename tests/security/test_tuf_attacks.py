"""TUF's attack table against the client's reader: python-tuf signs every file, the attacker changes what is
served.

https://theupdateframework.github.io/specification/latest/#goals-to-protect-against-specific-attacks
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import MetaFile

from cachesvc_client.trust_root.updater import MAX_METADATA_BYTES, MAX_ROOT_BYTES, MAX_TIMESTAMP_BYTES
from cachesvc_client.wire.errors import Corrupt, NotFound, Untrusted
from tests.trust_root.repository import DAY, NOW, Files, Repository, time_of

ROLES = ("timestamp", "snapshot", "targets")
LAST = {"timestamp": ("timestamp",), "snapshot": ("snapshot", "timestamp")}
LAST["targets"] = ("targets", *LAST["snapshot"])
"""What is published to bring a role's new version to a client."""


@pytest.fixture
def repository() -> Repository:
    return Repository()


@pytest.fixture
def local(repository: Repository) -> Files:
    """A node that has seen version 2 of everything but the root."""
    files = Files()
    repository.publish("targets", "snapshot", "timestamp")
    repository.refresh(files)
    return files


def name_of(repository: Repository, role: str) -> str:
    return "timestamp.json" if role == "timestamp" else f"{getattr(repository, role).version}.{role}.json"


def changed(data: bytes, change: Callable[[dict], object]) -> bytes:  # type: ignore[type-arg]
    value = json.loads(data)
    change(value)
    return json.dumps(value).encode()


def versions(files: Files) -> dict[str, int]:
    kept = {name: json.loads(data)["signed"]["version"] for name, data in files.files.items()}
    return {name.removesuffix(".json"): version for name, version in kept.items()}


def test_honest_repository_is_accepted(repository: Repository, local: Files) -> None:
    assert versions(local) == {"timestamp": 2, "snapshot": 2, "targets": 2}
    repository.asked.clear()
    trusted = repository.refresh(local)
    assert trusted.targets.common.version == 2
    assert repository.asked == ["2.root.json", "timestamp.json"]


@pytest.mark.parametrize("role", ROLES)
def test_rollback_of_each_role(repository: Repository, local: Files, role: str) -> None:
    before = versions(local)
    getattr(repository, role).version = 0
    repository.publish(*LAST[role])
    with pytest.raises(Untrusted, match="this node has seen version 2"):
        repository.refresh(local)
    assert versions(local)[role] == before[role]


def test_rollback_of_the_root(repository: Repository, local: Files) -> None:
    repository.publish("root")
    repository.refresh(local)
    repository.served["3.root.json"] = repository.served["1.root.json"]
    with pytest.raises(Untrusted, match="it is version 1"):
        repository.refresh(local)


def test_old_root_is_not_pinned_again_by_hiding_new_ones(repository: Repository, local: Files) -> None:
    repository.set_keys("timestamp", 1)
    repository.publish("root", "timestamp")
    repository.refresh(local)
    old = Repository()
    old.signers, old.served = repository.signers, {}
    old.served = {name: data for name, data in repository.served.items() if name != "2.root.json"}
    trusted = old.refresh(local, pinned=repository.pinned)
    assert trusted.root.common.version == 2  # the local chain, verified from the pinned root


def test_freeze(repository: Repository, local: Files) -> None:
    """The attacker serves the same files for ever."""
    with pytest.raises(Untrusted, match=r"expired 3\.0 d ago \(timestamp\.json\)"):
        repository.refresh(local, NOW + 10 * DAY)


@pytest.mark.parametrize("role", ["root", *ROLES])
def test_expired_each_role(repository: Repository, local: Files, role: str) -> None:
    getattr(repository, role).expires = time_of(NOW - DAY)
    repository.publish(*LAST.get(role, ("root",)))
    with pytest.raises(Untrusted, match=r"the trust metadata of .* expired .* ago"):
        repository.refresh(local)


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_missing_each_role(repository: Repository, local: Files, role: str) -> None:
    repository.publish(*LAST[role])
    del repository.served[name_of(repository, role)]
    with pytest.raises(NotFound):
        repository.refresh(local)


@pytest.mark.parametrize("role", ["snapshot", "targets"])
def test_mix_and_match(repository: Repository, local: Files, role: str) -> None:
    """An old file in the place of the present one, both honestly signed."""
    old = repository.served[name_of(repository, role)]
    repository.publish("targets", "snapshot", "timestamp")
    repository.served[name_of(repository, role)] = old
    with pytest.raises(Untrusted):
        repository.refresh(local)


@pytest.mark.parametrize("role", ["snapshot", "targets"])
def test_mix_and_match_without_hashes(repository: Repository, local: Files, role: str) -> None:
    repository.hashes = False
    old = repository.served[name_of(repository, role)]
    repository.publish("targets", "snapshot", "timestamp")
    repository.served[name_of(repository, role)] = old
    with pytest.raises(Untrusted, match="version 2, and version 3 is signed for"):
        repository.refresh(local)


def test_snapshot_drops_a_file(repository: Repository, local: Files) -> None:
    repository.snapshot.meta["heads.json"] = repository.snapshot.meta["targets.json"]
    repository.publish("snapshot", "timestamp")
    repository.refresh(local)
    del repository.snapshot.meta["heads.json"]
    repository.publish("snapshot", "timestamp")
    with pytest.raises(Untrusted, match=r"does not name heads\.json any more"):
        repository.refresh(local)


@pytest.mark.parametrize("role", ["timestamp", "snapshot"])
def test_fast_forward_and_recovery(repository: Repository, local: Files, role: str) -> None:
    """A thief of an online key raises versions; new keys in the root let the honest ones count again."""
    getattr(repository, role).version = 2**40
    repository.publish(*LAST[role])
    repository.refresh(local)
    getattr(repository, role).version = 2
    repository.publish(*LAST[role])
    with pytest.raises(Untrusted):
        repository.refresh(local)
    for online in ("timestamp", "snapshot"):
        repository.set_keys(online, 1)
        getattr(repository, online).version = 2
    repository.publish("root", "snapshot", "timestamp")
    repository.refresh(local)
    assert versions(local)[role] == 3


@pytest.mark.parametrize("role", ["root", *ROLES])
def test_keys_below_the_threshold(repository: Repository, local: Files, role: str) -> None:
    """One of two keys of a role is stolen."""
    repository.set_keys(role, 2, threshold=2)
    repository.publish("root", *[name for name in LAST.get(role, ()) if name != role], *({role} - {"root"}))
    repository.publish(*ROLES[::-1])
    repository.refresh(local)
    del repository.signers[role][1]
    repository.publish(*LAST.get(role, ("root",)))
    with pytest.raises(Untrusted, match=r"signed by 1 of the keys that .* names; 2 must sign"):
        repository.refresh(local)


@pytest.mark.parametrize("role", ["root", *ROLES])
def test_unknown_key(repository: Repository, local: Files, role: str) -> None:
    repository.signers[role] = [CryptoSigner.generate_ed25519()]
    repository.publish(*LAST.get(role, ("root",)))
    with pytest.raises(Untrusted, match="signed by 0 of the keys"):
        repository.refresh(local)


def test_recovery_where_the_old_key_stays_beside_a_new_one(repository: Repository, local: Files) -> None:
    """Any change of the online keys forgets raised versions, also where old files are still signed well."""
    repository.timestamp.version = 2**40
    repository.publish("timestamp")
    repository.refresh(local)
    repository.signers["timestamp"].append(CryptoSigner.generate_ed25519())
    repository.root.add_key(repository.signers["timestamp"][1].public_key, "timestamp")
    repository.timestamp.version = 2
    repository.publish("root", "timestamp")
    repository.refresh(local)
    assert versions(local)["timestamp"] == 3


def test_hash_that_nobody_can_check(repository: Repository, local: Files) -> None:
    repository.publish("snapshot")
    info = repository.info("snapshot", repository.snapshot.version)
    repository.timestamp.snapshot_meta = MetaFile(info.version, info.length, {"unknown": "00" * 32})
    repository.timestamp.version += 1
    repository.served["timestamp.json"] = repository.sign("timestamp")
    with pytest.raises(Corrupt, match="do not have the hash"):
        repository.refresh(local)


def test_root_by_new_keys_alone(repository: Repository, local: Files) -> None:
    """Keys of the attacker's own cannot take the root over."""
    repository.set_keys("root", 1)
    repository.previous_root_signers = []
    repository.publish("root")
    with pytest.raises(Untrusted, match="signed by 0 of the keys that root 1 names"):
        repository.refresh(local)


def test_root_by_old_keys_alone(repository: Repository, local: Files) -> None:
    repository.set_keys("root", 1)
    repository.signers["root"] = []
    repository.publish("root")
    with pytest.raises(Untrusted, match="signed by 0 of the keys that it names"):
        repository.refresh(local)


def test_root_skips_a_version(repository: Repository, local: Files) -> None:
    repository.publish("root")
    repository.served["2.root.json"] = repository.served.pop("2.root.json")
    repository.root.version = 6
    repository.publish("root")
    repository.served["3.root.json"] = repository.served["7.root.json"]
    with pytest.raises(Untrusted, match="it is version 7"):
        repository.refresh(local)


def test_one_key_under_two_ids_counts_once(repository: Repository, local: Files) -> None:
    repository.set_keys("timestamp", 1, threshold=2)
    (signer,) = repository.signers["timestamp"]
    other = CryptoSigner(
        signer._private_key, signer.public_key.__class__.from_dict("ab" * 32, signer.public_key.to_dict())
    )
    repository.root.add_key(other.public_key, "timestamp")
    repository.signers["timestamp"].append(other)
    repository.publish("root", "timestamp")
    with pytest.raises(Untrusted, match="signed by 1 of the keys"):
        repository.refresh(local)


def test_duplicate_signatures(repository: Repository, local: Files) -> None:
    repository.publish("timestamp")
    repository.served["timestamp.json"] = changed(
        repository.served["timestamp.json"], lambda value: value["signatures"].append(value["signatures"][0])
    )
    with pytest.raises(Corrupt, match="two signatures of one key id"):
        repository.refresh(local)


def test_duplicate_key_ids_of_a_role(repository: Repository, local: Files) -> None:
    repository.root.roles["timestamp"].keyids *= 2
    repository.publish("root")
    with pytest.raises(Corrupt, match="each once"):
        repository.refresh(local)


@pytest.mark.parametrize("role", ["root", *ROLES])
def test_altered_bytes(repository: Repository, local: Files, role: str) -> None:
    repository.hashes = False
    repository.publish(*LAST.get(role, ("root",)))
    name = name_of(repository, role)
    repository.served[name] = changed(
        repository.served[name], lambda value: value["signed"].update(expires="2099-01-01T00:00:00Z")
    )
    with pytest.raises(Untrusted, match="signed by 0 of the keys"):
        repository.refresh(local)


@pytest.mark.parametrize(
    ("role", "limit"),
    [
        ("root", MAX_ROOT_BYTES),
        ("timestamp", MAX_TIMESTAMP_BYTES),
        ("snapshot", MAX_METADATA_BYTES),
        ("targets", MAX_METADATA_BYTES),
    ],
)
def test_endless_data(repository: Repository, local: Files, role: str, limit: int) -> None:
    repository.hashes = False
    repository.publish(*LAST.get(role, ("root",)))
    name = name_of(repository, role)
    repository.served[name] += b" " * (limit + 1)
    with pytest.raises(Corrupt, match="more than"):
        repository.refresh(local)


def test_longer_than_the_signed_length(repository: Repository, local: Files) -> None:
    repository.publish("snapshot", "timestamp")
    repository.served["3.snapshot.json"] += b" "
    with pytest.raises(Corrupt, match="longer than the"):
        repository.refresh(local)


def test_file_of_one_role_for_another(repository: Repository, local: Files) -> None:
    """A key that two roles share does not make their files the same."""
    repository.signers["timestamp"] = repository.signers["snapshot"]
    keyid = repository.signers["snapshot"][0].public_key.keyid
    repository.root.roles["timestamp"].keyids = [keyid]
    repository.publish("root", "snapshot", "timestamp")
    repository.served["timestamp.json"] = repository.served[name_of(repository, "snapshot")]
    with pytest.raises(Corrupt, match="_type"):
        repository.refresh(local)


HOSTILE = (
    b"",
    b"[]",
    b"{",
    b'{"signed": {}, "signatures": 1}',
    b'{"signed": {"a": 1.5}, "signatures": []}',
    b'{"signed": {"a": 1, "a": 2}, "signatures": []}',
    b'{"signed": {"a": NaN}, "signatures": []}',
    b'{"signed": {"a": "\\ud800"}, "signatures": []}',
    b'{"signed": ' + b"[" * 100_000,
    b'{"signed": {"a": ' + b"9" * 10_000 + b'}, "signatures": []}',
    b'{"signed": {}, "signatures": [' + b",".join([b'{"keyid":"a","sig":""}'] * 65) + b"]}",
)


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_not_canonical(repository: Repository, local: Files, data: bytes) -> None:
    """What has no canonical form, or more than one reading, is refused before any signature is checked."""
    repository.served["timestamp.json"] = data
    with pytest.raises(Untrusted):
        repository.refresh(local)
    assert versions(local)["timestamp"] == 2


def test_clock_before_the_signing_is_told_apart(repository: Repository, local: Files) -> None:
    repository.timestamp.unrecognized_fields["x-cachesvc-signed-at"] = NOW
    repository.publish("timestamp")
    with pytest.raises(Untrusted, match="this machine's clock is wrong"):
        repository.refresh(local, NOW - DAY)
    repository.refresh(local, NOW)


def test_damaged_local_files_are_fetched_again(repository: Repository, local: Files) -> None:
    for name in local.files:
        local.files[name] = local.files[name][:-7]
    assert repository.refresh(local).targets.common.version == 2
    assert versions(local) == {"timestamp": 2, "snapshot": 2, "targets": 2}


def test_more_roots_than_one_update_reads(repository: Repository, local: Files) -> None:
    """The work is bounded, and the next update goes on."""
    for _ in range(260):
        repository.publish("root")
    assert repository.refresh(local).root.common.version == 257
    assert repository.refresh(local).root.common.version == 261


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "deep": lambda data: data[:-1] + b',"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "twice": lambda data: data[:-1] + b',"signed":{}}',
    "number without end": lambda data: data[:-1] + b',"x":' + b"9" * 100_000 + b"}",
    "no number": lambda data: data[:-1] + b',"x":NaN}',
    "other letters": lambda data: data.decode().encode("utf-16"),
    "mark before": lambda data: b"\xef\xbb\xbf" + data,
    "more behind": lambda data: data + b"{}",
    "list": lambda data: b"[" + data + b"]",
    "half a letter": lambda data: data[:-1] + b',"x":"\\ud800"}',
    "nothing": lambda data: data[:0],
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_parsed_before_its_signature_stops_nothing(
    repository: Repository, local: Files, form: str
) -> None:
    """A mirror, or a network, sends it: one error says so, and what this node has stays."""
    repository.publish("targets", "snapshot", "timestamp")
    for role in ROLES:
        name = name_of(repository, role)
        honest = repository.served[name]
        repository.served[name] = FORMS[form](honest)
        with pytest.raises((Untrusted, Corrupt)) as refused:
            repository.refresh(local)
        assert str(refused.value).isprintable() and len(str(refused.value)) < 500
        assert versions(local)["targets"] == 2
        repository.served[name] = honest
    assert repository.refresh(local).targets.common.version == 3
