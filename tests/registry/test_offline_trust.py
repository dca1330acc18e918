"""Root and targets that an operator signs: what the registry takes, what it refuses, and who signs what."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from registry_inside import ROOT, START, Clock, Column, Inside, inside
from trust_operator import Operator, generate, own_keys, role_keys

from cachesvc.api.metrics import Metrics
from cachesvc.cli.admin.trust.state import no_metadata_hint
from cachesvc.domain.access import ANY, Role, Token
from cachesvc.registry.context import Registry
from cachesvc.registry.trust import changes as trust_changes
from cachesvc.registry.trust import metadata as trust
from cachesvc.registry.trust import signers
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.trust_changes import KeysRequest, RootRequest, TargetsRequest
from cachesvc.tuf import changes
from cachesvc.tuf.draft import Draft
from cachesvc.tuf.keys import TrustKeys
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust_root.policy import SignerPolicy
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Corrupt,
    Forbidden,
    HeadConflict,
    InvalidRequest,
    Untrusted,
)
from cachesvc_client.wire.manifest.records import Statement
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Target
from tests.trust_root.repository import Files

DAY = 86_400


@pytest.fixture
def inner(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as reg:
        yield reg


@pytest.fixture
def online() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def operator(inner: Inside, online: SigningKey) -> Operator:
    """An operator whose first root and targets the registry has."""
    holder = Operator.with_online_key(inner, online)
    holder.put(holder.signed(holder.first((SignerRecord(ANY, inner.key.public),))))
    return holder


def statement(namespace: str, lane: str | None = None) -> Statement:
    return Statement(
        Namespace(namespace), ShortName("bert"), Target("t"), 1, lane=Lane(lane) if lane else None
    )


def test_the_first_root_and_its_targets_reach_a_client(operator: Operator) -> None:
    metadata = operator.refresh(Files())
    assert metadata.root.roles["root"].threshold == 2 and len(metadata.root.roles["root"].keyids) == 3
    policy = SignerPolicy(metadata.targets, "here")
    assert policy.check(statement("team"), [operator.reg.key.public]) == operator.reg.key.public
    state = operator.state()
    assert (state.signs_all, state.signs_online, state.root) == (False, True, 1)
    with operator.reg.registry.index.read() as unit:
        rows = unit.audit.page(ANY, None, 10, "trust", None)
    assert [(row.action, row.subject, row.by) for row in rows] == [
        ("trust.targets", "targets 1", ROOT.token),
        ("trust.root", "root 1", ROOT.token),
    ]


def test_the_gauges_say_when_files_expire_that_the_registry_does_not_sign(operator: Operator) -> None:
    def expires() -> dict[str, float]:
        lines = Metrics(operator.reg.registry, lambda: 0).render().decode().splitlines()
        rows = (re.fullmatch(r'cachesvc_trust_expires_seconds\{role="(.*)"\} (.*)', line) for line in lines)
        return {row[1]: float(row[2]) for row in rows if row}

    operator.refresh(Files())
    operator.reg.clock.now = START + 300 * DAY
    assert expires() == {"root": 65 * DAY, "targets": 65 * DAY}, "the registry signs the others when asked"
    operator.reg.registry = replace(operator.reg.registry, trust_keys=None)
    assert expires().keys() == {"root", "targets", "snapshot", "timestamp"} and expires()["timestamp"] < 0


def test_without_an_online_key_nothing_is_made_and_nothing_is_taken(inner: Inside, tmp_path: Path) -> None:
    assert trust.prepare(inner.registry) == ()
    holder = Operator.with_online_key(inner, SigningKey.generate())
    draft = holder.signed(holder.first())
    assert trust.prepare(inner.registry) == ()  # an online key alone makes no root
    inner.registry = replace(inner.registry, trust_keys=None)
    with pytest.raises(InvalidRequest, match="no online key") as refusal:
        holder.put(draft)
    assert "CACHESVC_SERVER_ONLINE_KEY" in refusal.value.hint
    assert not holder.state().root and not list(tmp_path.glob("*.key"))
    assert "CACHESVC_SERVER_ONLINE_KEY" in no_metadata_hint(holder.state())  # what `trust show` says


def test_the_registry_renews_what_it_signs_and_leaves_the_rest_to_the_operator(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    local = Files()
    operator.refresh(local)
    operator.reg.clock.now = START + 300 * DAY
    metadata = operator.refresh(local)
    assert metadata.timestamp.common.version == metadata.snapshot.common.version == START + 300 * DAY
    assert (metadata.root.common.version, metadata.targets.common.version) == (1, 1)
    with caplog.at_level(logging.INFO, "cachesvc.trust"):
        trust.prepare(operator.reg.registry)
    assert "cachesvc admin trust renew" in caplog.text
    operator.reg.clock.now = START + 366 * DAY
    with pytest.raises(Untrusted, match=r"expired 24\.0 h ago \(root\.json\)") as refusal:
        operator.refresh(local)
    assert "operator" in refusal.value.hint and "trust renew" in refusal.value.hint
    renewed = operator.next_root({})
    renewed = replace(renewed, targets=operator.next_targets().targets)
    operator.put(operator.signed(renewed))
    assert operator.refresh(local).root.common.version == 2


def test_new_holders_and_a_new_threshold_are_signed_by_old_and_new(operator: Operator) -> None:
    local, before = Files(), operator.root
    operator.refresh(local)
    after = generate(5)
    draft = operator.next_root({"root": role_keys(after, 3)})
    with pytest.raises(Untrusted, match="0 of the 2 signatures that the root before demands"):
        operator.put(operator.signed(draft, after[:3]))
    with pytest.raises(Untrusted, match="2 of the 3 signatures that this root itself demands"):
        operator.put(operator.signed(draft, [*before[:2], *after[:2]]))
    operator.put(operator.signed(draft, [*before[1:], *after[2:]]))
    assert operator.refresh(local).root.roles["root"].threshold == 3
    operator.root = after
    with pytest.raises(Untrusted, match="2 of the 3"):
        operator.put(operator.signed(operator.next_root({})))
    operator.put(operator.signed(operator.next_root({}), after[:3]))


def test_new_keys_of_the_targets_come_with_targets_that_they_sign(operator: Operator) -> None:
    local, after = Files(), generate(2)
    operator.refresh(local)
    draft = operator.next_root({"targets": role_keys(after, 2)})
    with pytest.raises(Untrusted, match=r"targets\.json: signed by 0"):
        operator.put(operator.signed(draft))
    draft = replace(draft, targets=operator.next_targets().targets)
    with pytest.raises(InvalidRequest, match="is no key of targets"):
        operator.signed(draft)
    operator.targets = after
    with pytest.raises(Untrusted, match="1 of the 2 signatures that root 2 demands"):
        operator.put(operator.signed(draft))
    operator.put(operator.signed(draft).sign(after[1], "targets"))
    assert operator.refresh(local).root.common.version == 2


def test_a_lane_rule_counts_for_its_lanes_and_a_threshold_for_the_trunk(operator: Operator) -> None:
    builders, robot = generate(2), SigningKey.generate()
    keys = [key.public for key in builders]
    draft = operator.next_targets(
        lambda targets: (
            changes.delegate(targets, "*", None, [], [operator.reg.key.public], None),
            changes.delegate(targets, "team", None, keys, [], 2),
            changes.delegate(targets, "team", "pr-*", [robot.public], [], None),
        )
    )
    operator.put(operator.signed(draft))
    policy = SignerPolicy(operator.refresh(Files()).targets, "here")
    assert policy.check(statement("team", "pr-7"), [robot.public]) == robot.public
    assert policy.check(statement("team"), keys) == keys[0]
    for place in (statement("team"), statement("team", "nightly"), statement("other", "pr-7")):
        with pytest.raises(Untrusted):
            policy.check(place, [robot.public])
    with pytest.raises(Untrusted, match="demands 2 of 2"):
        policy.check(statement("team"), keys[:1])


def test_a_revoked_key_leaves_every_delegation_and_is_listed_with_its_reason(operator: Operator) -> None:
    leaked = operator.reg.key.public
    operator.put(
        operator.signed(operator.next_targets(lambda one: changes.revoke(one, leaked, START, "on a laptop")))
    )
    metadata = operator.refresh(Files())
    assert metadata.targets.delegations == ()
    with pytest.raises(Untrusted, match=r"revoked on .*: on a laptop"):
        SignerPolicy(metadata.targets, "here").check(statement("team"), [leaked])
    with pytest.raises(InvalidRequest, match="was revoked: on a laptop"):
        operator.next_targets(lambda one: changes.delegate(one, "team", None, [leaked], [], None))


def test_signers_of_the_index_do_not_change_the_operators_targets(operator: Operator) -> None:
    before = operator.present("targets")
    signers.add_signer(operator.reg.registry, ROOT, SignerRecord("team", SigningKey.generate().public))
    trust.prepare(operator.reg.registry)
    assert operator.present("targets") == before


def test_somebody_else_was_faster(operator: Operator) -> None:
    mine, theirs = operator.next_root({}), operator.next_root({"root": role_keys(operator.root, 1)})
    targets = operator.next_targets()
    operator.reg.clock.now += 60
    operator.put(operator.signed(theirs))
    with pytest.raises(HeadConflict, match="somebody else was faster"):
        operator.put(operator.signed(mine))
    assert operator.put(operator.signed(theirs)).root == 2  # the same again is a success
    operator.put(operator.signed(operator.next_targets()))
    with pytest.raises(HeadConflict, match=r"targets\.json is version .* somebody else was faster"):
        operator.put(operator.signed(targets))


def test_only_an_administrator_of_all_namespaces_sends_them(operator: Operator) -> None:
    draft = operator.signed(operator.next_root({}))
    for token in (Token("t-1", "x", Role.admin, "team"), Token("t-2", "x", Role.write, ANY)):
        with pytest.raises(Forbidden):
            operator.put(draft, token)
        with pytest.raises(Forbidden):
            trust_changes.make_keys(operator.reg.registry, token, KeysRequest(("online",)))


def test_an_online_key_of_the_settings_is_changed_by_a_root_that_names_it(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    local, new = Files(), SigningKey.generate()
    operator.refresh(local)
    with pytest.raises(InvalidRequest, match="comes from the settings"):
        trust_changes.make_keys(operator.reg.registry, ROOT, KeysRequest(("online",)))
    operator.reg.registry = replace(operator.reg.registry, trust_keys=TrustKeys(None, new))
    trust.prepare(operator.reg.registry)
    assert "rotate-online" in caplog.text and not operator.state().signs_online
    with pytest.raises(InvalidRequest, match="this registry's online key is"):
        operator.put(operator.signed(operator.next_targets()))
    online = {role: role_keys([new]) for role in ("snapshot", "timestamp")}
    operator.put(operator.signed(operator.next_root(online)))
    assert operator.state().signs_online
    assert operator.refresh(local).root.common.version == 2


def test_a_registry_with_its_own_root_makes_new_keys(inner: Inside, tmp_path: Path) -> None:
    holder = Operator(own_keys(inner, tmp_path))
    local, pinned = Files(), holder.file("1.root.json")
    holder.refresh(local, pinned)
    assert holder.state().signs_all
    for number, names in enumerate((("online",), ("root", "targets"), ("root", "targets", "online"))):
        before = {name: (tmp_path / f"{name}.key").read_text() for name in ("root", "targets", "online")}
        trust_changes.make_keys(inner.registry, ROOT, KeysRequest(names))
        after = {name: (tmp_path / f"{name}.key").read_text() for name in before}
        assert {name for name in before if before[name] != after[name]} == set(names)
        assert not list(tmp_path.glob("*.new.key"))
        assert holder.refresh(local, pinned).root.common.version == number + 2
        inner.clock.now += 60
    inner.clock.now += 200 * DAY  # it goes on to renew all of them
    assert holder.refresh(local, pinned).root.common.version == 5


def test_a_registry_with_its_own_root_takes_an_online_key_from_the_settings(
    inner: Inside, tmp_path: Path
) -> None:
    holder, new, local = Operator(own_keys(inner, tmp_path)), SigningKey.generate(), Files()
    pinned = holder.file("1.root.json")
    holder.refresh(local, pinned)
    inner.registry = replace(inner.registry, trust_keys=TrustKeys(tmp_path, new))
    trust.prepare(inner.registry)
    holder.refresh(local, pinned)  # the old one signs until a root names the new one
    assert trust_changes.make_keys(inner.registry, ROOT, KeysRequest(("online",))).online == new.public
    (tmp_path / "online.key").unlink()
    inner.clock.now += 5 * DAY
    assert holder.refresh(local, pinned).timestamp.common.version == START + 5 * DAY
    with pytest.raises(InvalidRequest, match="comes from the settings"):
        trust_changes.make_keys(inner.registry, ROOT, KeysRequest(("online",)))


def test_a_damaged_key_file_fails_no_client(
    inner: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    holder = Operator(own_keys(inner, tmp_path))
    before = holder.file("timestamp.json")
    (tmp_path / "online.key").write_text("damaged")
    inner.clock.now += 5 * DAY
    assert holder.file("timestamp.json") == before
    assert "online.key: not a signing key" in caplog.text


def test_a_killed_rotation_goes_on_with_the_keys_that_the_root_names(inner: Inside, tmp_path: Path) -> None:
    """Killed before the commit, the new key waits; killed after it, the next start puts it in its place."""
    holder = Operator(own_keys(inner, tmp_path))
    keys = inner.registry.trust_keys
    keys.prepare_next(("online",))
    trust.prepare(inner.registry)
    assert holder.refresh(Files()).root.common.version == 1 and (tmp_path / "online.new.key").exists()
    waiting = (tmp_path / "online.new.key").read_text()
    keys.settle = lambda _root: None
    trust_changes.make_keys(inner.registry, ROOT, KeysRequest(("online",)))
    inner.registry = replace(inner.registry, trust_keys=TrustKeys(tmp_path))
    trust.prepare(inner.registry)
    assert (tmp_path / "online.key").read_text() == waiting
    assert holder.refresh(Files()).root.common.version == 2


def test_a_registry_hands_its_root_over_to_the_operator(
    inner: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    holder = Operator(own_keys(inner, tmp_path))
    local, pinned = Files(), holder.file("1.root.json")
    holder.refresh(local, pinned)
    draft = replace(holder.next_root(holder.roles()), targets=holder.next_targets().targets)
    with pytest.raises(Untrusted, match="0 of the 1 signatures that the root before demands"):
        holder.put(holder.signed(draft))
    own = SigningKey.load(tmp_path / "root.key")
    holder.put(holder.signed(draft).sign(own, "root"))
    assert holder.refresh(local, pinned).root.common.version == 2
    with caplog.at_level(logging.INFO, "cachesvc.trust"):
        trust.prepare(inner.registry)
    assert "root.key and targets.key in the data folder are not needed any more" in caplog.text
    (tmp_path / "root.key").unlink()
    (tmp_path / "targets.key").unlink()
    trust.prepare(inner.registry)
    assert sorted(path.name for path in tmp_path.glob("*.key")) == ["online.key"]
    # Its online key is its own still: it makes the next one, and the operator's root names it.
    state = trust_changes.make_keys(inner.registry, ROOT, KeysRequest(("online",)))
    assert state.online == SigningKey.load(tmp_path / "online.new.key").public
    online = {role: holder.roles()[role] for role in ("snapshot", "timestamp")}
    holder.put(holder.signed(holder.next_root(online)))
    assert SigningKey.load(tmp_path / "online.key").public == state.online
    assert holder.refresh(local, pinned).root.common.version == 3
    with pytest.raises(InvalidRequest, match="the operator holds the keys"):
        trust_changes.make_keys(inner.registry, ROOT, KeysRequest(("root",)))


REFUSED = [
    ("not JSON", lambda _text: "{", Corrupt, "not a file of trust metadata"),
    ("another role", None, Corrupt, "a file of the role targets"),
    ("no signatures", lambda text: _changed(text, signatures=[]), Untrusted, "0 of the 2 signatures"),
    ("altered", lambda text: _changed(text, expires="2099-01-01T00:00:00Z"), Untrusted, "0 of the 2"),
    ("skips a version", lambda text: _changed(text, version=9), InvalidRequest, "the next one is 2"),
    ("too large", lambda text: text + " " * (1 << 20), CacheSvcError, "are allowed"),
]


def _changed(text: str, **fields: object) -> str:
    value = json.loads(text)
    if "signatures" in fields:
        value["signatures"] = fields["signatures"]
    else:
        value["signed"] |= fields
    return json.dumps(value)


@pytest.mark.parametrize(
    ("change", "error", "words"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_a_root_that_is_refused_changes_nothing(  # type: ignore[no-untyped-def]
    operator: Operator, change, error, words: str
) -> None:
    signed = operator.signed(operator.next_root({}))
    assert signed.root is not None
    text = operator.present("targets") if change is None else change(signed.root)
    before = operator.everything()
    with pytest.raises(error, match=words):
        trust_changes.put_root(operator.reg.registry, ROOT, RootRequest(text))
    assert operator.everything() == before


def test_a_file_of_the_future_and_one_after_its_time_change_nothing(operator: Operator) -> None:
    before = operator.everything()
    operator.reg.clock.now += DAY
    early = operator.signed(operator.next_targets())
    operator.reg.clock.now -= DAY
    with pytest.raises(Untrusted, match=r"was signed 24\.0 h after the registry's time: a clock is wrong"):
        operator.put(early)
    operator.reg.clock.now -= 400 * DAY
    late = operator.signed(operator.next_targets())
    operator.reg.clock.now += 400 * DAY
    with pytest.raises(Untrusted, match="expired"):
        operator.put(late)
    assert operator.everything() == before


def test_replicas_take_turns(operator: Operator) -> None:
    """One of eight that see an old timestamp at once signs; the others give what it has signed."""
    operator.reg.clock.now += 5 * DAY
    registry: Registry = operator.reg.registry
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(lambda _: trust.read_file(registry, ROOT, "timestamp.json"), range(32)))
    assert len(set(seen)) == 1
    assert json.loads(seen[0])["signed"]["version"] == START + 5 * DAY


def test_a_second_replica_signs_with_the_same_key(
    operator: Operator, online: SigningKey, column: Column, tmp_path: Path
) -> None:
    with inside(tmp_path, operator.reg.key, operator.reg.clock, column=column) as second:
        other = Operator.with_online_key(second, online)
        other.root, other.targets, local = operator.root, operator.targets, Files()
        for holder in (operator, other, operator):
            operator.reg.clock.now += 5 * DAY
            holder.put(holder.signed(holder.next_targets()))
            metadata = [each.refresh(local) for each in (operator, other)]
            assert len({each.targets.common.version for each in metadata}) == 1


def test_a_draft_counts_signatures_and_refuses_other_keys(operator: Operator) -> None:
    after = generate(2)
    draft = operator.next_root({"root": role_keys(after, 2)}).sign(operator.root[0], "root")
    assert [str(count) for count in draft.counts()] == [
        "root 2: 1 of 2 signatures by keys of root 1",
        "root 2: 0 of 2 signatures by keys of root 2",
    ]
    assert Draft.parse(draft.encode(), "draft") == draft and not draft.is_complete
    with pytest.raises(InvalidRequest, match=r"is no key of root, but one of targets \(--targets-key"):
        draft.sign(operator.targets[0], "root")
    with pytest.raises(InvalidRequest, match="is no key of root"):
        draft.sign(SigningKey.generate(), "root")
    with pytest.raises(InvalidRequest, match="no targets to sign"):
        draft.sign(operator.targets[0], "targets")
    for data in (b"", b"{}", b"[]", draft.encode().replace(b"draft/1", b"draft/2")):
        with pytest.raises(InvalidRequest, match="not a draft"):
            Draft.parse(data, "draft")


def test_targets_alone_need_a_root(inner: Inside) -> None:
    holder = Operator.with_online_key(inner, SigningKey.generate())
    draft = holder.signed(holder.first())
    with pytest.raises(CacheSvcError, match="no trust metadata"):
        trust_changes.put_targets(inner.registry, ROOT, TargetsRequest(draft.targets))
    with pytest.raises(InvalidRequest, match="the first root comes with its targets"):
        holder.put(replace(draft, targets=None))
    assert not holder.state().root
