"""Revoke a signer: what is refused and withheld, where, with which reason, and who learns of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from registry_inside import ROOT, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Publication, make

from benchmarks.serving import serving
from cachesvc.domain.access import Role, Token
from cachesvc.domain.retention import DAY
from cachesvc.hot.memory import MemoryHot
from cachesvc.index.starts.nodes import SEEN_STEP_SECONDS
from cachesvc.registry import audit, download, inventory, reports
from cachesvc.registry.access import tokens
from cachesvc.registry.trust import provenance, signers
from cachesvc.registry.upkeep import gc, quarantine
from cachesvc.schema.access import SignerRecord, TokenRequest
from cachesvc.schema.namespaces import RequireRequest
from cachesvc.schema.revocations import Revocation, RevocationRequest
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.installed import RestoreResult
from cachesvc_client.node.store import NodeStore
from cachesvc_client.restore.accept import accept_name
from cachesvc_client.restore.request import NameRequest
from cachesvc_client.restore.settings import Inquiry, RestoreSettings, RestoreTarget
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Forbidden, Incompatible, InvalidRequest, NotFound, Untrusted
from cachesvc_client.wire.names import Name, Namespace, ShortName
from cachesvc_client.wire.requests.protocol import ANSWER_SECONDS, ResolveRequest
from cachesvc_client.wire.requests.reports import ReportRequest, RevisionReport

WHY = "leaked in a CI log"
OWNER = Token("t-owner", "team's admin", Role.admin, "team")
SERVICE = Token("t-service", "cluster-7", Role.report, "team")


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


@pytest.fixture
def leaked(reg: Inside) -> SigningKey:
    """A signer of team."""
    key = SigningKey.generate()
    signers.add_signer(reg.registry, ROOT, SignerRecord("team", key.public, "old CI"))
    return key


def published(reg: Inside, key: SigningKey, **made: object) -> Publication:
    one = make(key, **made)
    assert reg.bundle(one).created
    return one


def revoke(reg: Inside, key: SigningKey, by: Token = ROOT, namespace: str | None = None) -> Revocation:
    return signers.revoke_signer(reg.registry, by, RevocationRequest(key.public, namespace, WHY))


def reported(reg: Inside, made: Publication, node: str, state: str) -> None:
    rows = (RevisionReport(made.revision, state),)
    reports.report(reg.registry, SERVICE, ReportRequest(node, FINGERPRINT, rows))


def test_what_it_signed_is_withheld_in_lanes_too_and_the_answer_says_why(
    reg: Inside, leaked: SigningKey
) -> None:
    first = published(reg, leaked)
    published(reg, leaked, lane="pr-1", target="other")
    revocation = revoke(reg, leaked)
    assert (revocation.namespace, revocation.signer_of, revocation.revisions) == ("*", ("team",), 2)
    assert [(row.name, row.lane, row.revisions) for row in revocation.names] == [
        ("bert", None, 1),
        ("bert", "pr-1", 1),
    ]
    for lane in (None, "pr-1"):
        answer = reg.resolve(lane=lane)
        assert answer.revisions == ()
        for rejected in answer.rejected:
            assert rejected.withheld
            assert rejected.differences[0].mine == f"its signer was revoked: {WHY}"
    assert inventory.get_revision(reg.registry, ROOT, first.revision).signer_revoked == WHY


def test_what_it_signed_before_it_was_removed_is_withheld_and_counted(
    reg: Inside, leaked: SigningKey
) -> None:
    published(reg, leaked)
    signers.remove_signer(reg.registry, ROOT, "team", leaked.public)
    revocation = revoke(reg, leaked)
    assert (revocation.signer_of, revocation.revisions) == ((), 1)
    [rejected] = reg.resolve().rejected
    assert WHY in rejected.differences[0].mine


def test_its_packs_are_not_given_any_more_and_equal_packs_of_others_are(
    reg: Inside, leaked: SigningKey
) -> None:
    """Readers and builders of the namespace are refused with the reason, strangers without. Its
    administrators may examine it."""
    withheld, other = published(reg, leaked), published(reg, reg.key, target="other")
    assert withheld.manifest.pack.digest == other.manifest.pack.digest
    service = download.find_pack(reg.registry, SERVICE, withheld.revision)
    assert service.digest == withheld.manifest.pack.digest
    revoke(reg, leaked)
    for token in (SERVICE, replace(SERVICE, role=Role.write)):
        with pytest.raises(NotFound, match=f"is not offered: its signer was revoked: {WHY}"):
            download.find_pack(reg.registry, token, withheld.revision)
        assert download.find_pack(reg.registry, token, other.revision).digest == service.digest
    with pytest.raises(NotFound, match="does not exist"):
        download.find_pack(reg.registry, replace(SERVICE, namespace="other"), withheld.revision)
    for token in (OWNER, ROOT):
        assert download.find_pack(reg.registry, token, withheld.revision).digest == service.digest
    signers.add_signer(reg.registry, ROOT, SignerRecord("team", leaked.public), again=True)
    assert download.find_pack(reg.registry, SERVICE, withheld.revision).digest == service.digest


def test_packs_are_not_given_for_each_reason_to_offer_them_to_nobody(reg: Inside, leaked: SigningKey) -> None:
    made = published(reg, leaked)
    lane = published(reg, leaked, lane="pr-1")
    reader = replace(SERVICE, lane=None)

    def refusal(revision: Digest = made.revision) -> str:
        try:
            download.find_pack(reg.registry, reader, revision)
        except NotFound as error:
            return error.message
        return ""

    assert refusal() == ""
    quarantine.withdraw(reg.registry, ROOT, made.revision, "wrong numbers")
    assert "withheld by an operator (wrong numbers)" in refusal()
    quarantine.release(reg.registry, ROOT, made.revision)
    assert refusal() == ""
    demand = RequireRequest("builder=https://github.com/org/app/*")
    provenance.set_requirement(reg.registry, ROOT, Namespace("team"), demand)
    assert "the namespace requires builder=" in refusal()
    assert refusal(lane.revision) == "", "a lane is not held to what the trunk requires"
    provenance.set_requirement(reg.registry, ROOT, Namespace("team"), RequireRequest(None))
    assert refusal() == ""
    signers.remove_signer(reg.registry, ROOT, "team", leaked.public)
    assert "its signer was removed" in refusal()


def test_it_signs_nothing_more_and_the_refusal_says_why(reg: Inside, leaked: SigningKey) -> None:
    begun = make(leaked, target="begun")
    upload = reg.begin(begun)
    reg.put(upload, begun.pack)
    revoke(reg, leaked)
    for publish in (lambda: reg.commit(upload, begun), lambda: reg.bundle(make(leaked, target="new"))):
        with pytest.raises(Untrusted, match=f"may not sign for team: the signer was revoked: {WHY}"):
            publish()
    assert reg.bundle(make(reg.key)).created


def test_it_is_not_added_again_by_accident(reg: Inside, leaked: SigningKey) -> None:
    published(reg, leaked)
    revoke(reg, leaked)
    for namespace in ("team", "other", "*"):
        with pytest.raises(InvalidRequest, match=rf"was revoked everywhere on \d{{4}}-.*: {WHY}"):
            signers.add_signer(reg.registry, ROOT, SignerRecord(namespace, leaked.public))
    with pytest.raises(Forbidden):
        signers.add_signer(reg.registry, OWNER, SignerRecord("team", leaked.public), again=True)
    signers.add_signer(reg.registry, ROOT, SignerRecord("team", leaked.public), again=True)
    assert len(reg.resolve().revisions) == 1
    assert signers.list_revoked(reg.registry, ROOT) == []
    actions = [row.action for row in audit.audit_page(reg.registry, ROOT).rows]
    assert actions[:3] == ["signer.add", "signer.unrevoke", "signer.revoke"]


def test_an_administrator_of_one_namespace_revokes_a_key_of_all_there_alone(reg: Inside) -> None:
    """The signer of every namespace stays, and counts in the others."""
    published(reg, reg.key)
    published(reg, reg.key, namespace="other")
    with pytest.raises(Forbidden):
        revoke(reg, reg.key, OWNER, "other")
    with pytest.raises(Forbidden):
        revoke(reg, reg.key, OWNER, "*")
    revocation = revoke(reg, reg.key, OWNER)
    assert (revocation.namespace, revocation.signer_of, revocation.revisions) == ("team", (), 1)
    assert reg.resolve().revisions == ()
    with pytest.raises(Untrusted, match="was revoked"):
        reg.bundle(make(reg.key, target="new"))
    request = ResolveRequest(Namespace("other"), ShortName("bert"), FINGERPRINT)
    assert b'"revisions":[]' not in reg.answer(request)
    assert reg.bundle(make(reg.key, namespace="other", target="new")).created
    assert signers.list_revoked(reg.registry, replace(OWNER, namespace="other")) == []
    signers.add_signer(reg.registry, ROOT, SignerRecord("*", reg.key.public))
    assert reg.resolve().revisions == (), "a signer of all does not end what one namespace decided"
    signers.add_signer(reg.registry, OWNER, SignerRecord("team", reg.key.public), again=True)
    assert len(reg.resolve().revisions) == 1


def test_a_plan_changes_nothing_and_a_second_revocation_keeps_the_first_reason(
    reg: Inside, leaked: SigningKey
) -> None:
    published(reg, leaked)
    request = RevocationRequest(leaked.public, None, WHY)
    reg.resolve()  # from now on it is written down that it was offered
    planned = signers.plan_revocation(reg.registry, ROOT, request)
    assert len(reg.resolve().revisions) == 1
    assert signers.list_revoked(reg.registry, ROOT) == []
    assert planned == revoke(reg, leaked)
    reg.clock.now += 100
    again = signers.revoke_signer(reg.registry, ROOT, replace(request, why="another reason"))
    assert (again.signer_of, again.revisions) == ((), 1)
    [row] = signers.list_revoked(reg.registry, ROOT)
    assert (row.why, row.revoked, row.by) == (WHY, int(reg.clock.now) - 100, ROOT.token)
    rows = [row for row in audit.audit_page(reg.registry, ROOT).rows if row.action == "signer.revoke"]
    assert len(rows) == 1
    assert rows[0].details["why"] == WHY
    assert rows[0].details["revisions"] == "1"


def test_it_lists_the_nodes_that_reported_in_the_last_30_days(reg: Inside, leaked: SigningKey) -> None:
    first, second, other = (
        published(reg, leaked),
        published(reg, leaked, target="second"),
        published(reg, reg.key, target="other"),
    )
    reported(reg, first, "a" * 32, "hit")
    reg.clock.now += 20 * DAY
    reported(reg, first, "b" * 32, "inert")
    reported(reg, second, "b" * 32, "unused")
    reported(reg, other, "c" * 32, "hit")
    nodes = {row.node: row for row in revoke(reg, leaked).nodes}
    assert set(nodes) == {"a" * 32, "b" * 32}
    assert (nodes["a" * 32].used, nodes["b" * 32].used) == (True, False)
    assert (nodes["a" * 32].token, nodes["b" * 32].revisions) == (SERVICE.token, 2)
    reg.clock.now += 11 * DAY
    assert [row.node for row in revoke(reg, leaked).nodes] == ["b" * 32]
    gc.collect(reg.registry)
    reg.clock.now -= 11 * DAY
    assert [row.node for row in revoke(reg, leaked).nodes] == ["b" * 32], "the older one was deleted"


def test_a_node_that_reports_often_is_written_down_once_an_hour(reg: Inside, leaked: SigningKey) -> None:
    made = published(reg, leaked)
    seen = []
    for seconds in (0, 60, SEEN_STEP_SECONDS):
        reg.clock.now += seconds
        reported(reg, made, "a" * 32, "hit")
        seen.append(revoke(reg, leaked).nodes[0].seen)
    assert seen[0] == seen[1] < seen[2]


def test_one_token_that_pretends_to_be_many_nodes_fills_a_bounded_list(
    reg: Inside, leaked: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachesvc.index.starts.nodes.NODES", 3)
    monkeypatch.setattr(signers, "SHOWN_NODES", 2)
    made = published(reg, leaked)
    for number in range(5):
        reported(reg, made, f"{number:032x}", "hit")
    revocation = revoke(reg, leaked)
    assert (len(revocation.nodes), revocation.more_nodes) == (2, True)
    with reg.registry.index.read() as unit:
        assert len(unit.nodes.of_signer(leaked.public, "*", 0, 100)) == 3


def test_another_replicas_cached_answer_ends_within_5_seconds(reg: Inside, leaked: SigningKey) -> None:
    """Without a shared hot store: nothing tells the other replica."""
    clock = Clock()
    replica = replace(reg.registry, hot=MemoryHot(clock=clock), own=MemoryHot(clock=clock))
    request = ResolveRequest(Namespace("team"), ShortName("bert"), FINGERPRINT)
    published(reg, leaked)
    assert b'"revisions":[]' not in reg.answer(request, registry=replica)
    revoke(reg, leaked)
    assert b'"revisions":[]' in reg.answer(request), "the replica that revoked it knows at once"
    clock.now += 5.1
    answer = reg.answer(request, registry=replica)
    assert b'"revisions":[]' in answer
    assert WHY.encode() in answer


@pytest.fixture
def node(reg: Inside, leaked: SigningKey, tmp_path: Path) -> Callable[[str, str], list[str]]:
    """Start a process on a node: return the revisions that it accepts of the registry at an address."""
    token = tokens.create_token(reg.registry, None, TokenRequest("cluster-7", "report", "team"))

    def begin(node_name: str, url: str) -> list[str]:
        settings = RestoreSettings(Acceptance([leaked.public]), FINGERPRINT)
        target = RestoreTarget(NodeStore(tmp_path / node_name), dict)
        request = NameRequest(Name.parse("team/bert"))
        with Remote(url, token.secret) as remote, contextlib.suppress(Incompatible):
            accepted = accept_name(request, Inquiry(remote, settings, target, RestoreResult()))
            return [one.revision for one in accepted]
        return []

    return begin


def test_a_node_of_another_replica_refuses_at_each_start_from_5_seconds_on(
    reg: Inside, leaked: SigningKey, node: Callable[[str, str], list[str]]
) -> None:
    """Each replica has its own hot store, and nothing tells them. The node asks the other replica just before
    that one forgets its answer, and must not remember the answer for longer than the replica would have."""
    first, second = (replace(reg.registry, hot=MemoryHot(), clock=time.time) for _ in range(2))
    published(reg, leaked)
    with serving(second) as url:
        asked = time.monotonic()
        [revision] = node("first node", url)
        revoke(replace(reg, registry=first), leaked)
        revoked = time.monotonic()
        time.sleep(4.5)
        before = node("second node", url)
        if time.monotonic() < asked + ANSWER_SECONDS:  # a busy machine may be later than that
            assert before == [revision], "the replica remembers its answer for 5 s"
        time.sleep(max(0.0, revoked + ANSWER_SECONDS - time.monotonic()))
        for name in ("first node", "second node", "third node"):
            assert node(name, url) == [], name


def test_a_text_that_is_no_key_is_refused(reg: Inside) -> None:
    for text in ("", "ed25519:short", "*"):
        with pytest.raises(InvalidRequest, match="key: "):
            signers.plan_revocation(reg.registry, ROOT, RevocationRequest(text))
