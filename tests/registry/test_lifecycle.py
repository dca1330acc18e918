"""Test retention by namespace, eviction, pins, quotas and fsck, and what operators see of them, in this
process with a clock of the test's."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from registry_inside import LIMITS, ROOT, START, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Publication, make

from cachesvc.bootstrap.parts import limits_of
from cachesvc.domain.access import Role, Token
from cachesvc.index.entries import inventory as inventory_index
from cachesvc.index.entries.search import Search
from cachesvc.registry import audit, inventory, publish, reports, resolve
from cachesvc.registry.trust import signers
from cachesvc.registry.upkeep import fsck, gc, quarantine
from cachesvc.registry.upkeep import retention as changes
from cachesvc.schema.namespaces import BOUNDS, Policy
from cachesvc.schema.upkeep import Finding
from cachesvc.settings import Settings
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import Forbidden, HeadConflict, InvalidRequest, NotFound, StorageFull
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag
from cachesvc_client.wire.requests.protocol import CommitRequest, ResolveRequest
from cachesvc_client.wire.requests.reports import ReportRequest, RevisionReport

DAY = 86_400
TEAM = Namespace("team")


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def new_publication(reg: Inside, number: int = 1, **more: Any) -> Publication:
    return make(
        reg.key,
        sequence=int(reg.clock.now * 1000) + number,
        **{"content": b"%d" % number * 50, "target": f"t{number}", **more},
    )


def targets(reg: Inside) -> set[str]:
    page = inventory.search_entries(reg.registry, ROOT, Search(), None, 100)
    return {row.target for row in page.rows}


def keep(reg: Inside, **policy: int) -> None:
    changes.set_policy(reg.registry, ROOT, TEAM, Policy(**policy))


def test_an_entry_that_is_not_offered_goes_and_an_offered_entry_stays(reg: Inside) -> None:
    idle, used, pinned = (
        new_publication(reg, 1, name="idle"),
        new_publication(reg, 2),
        new_publication(reg, 3, name="held"),
    )
    for one in (idle, used, pinned):
        reg.publish(one)
    keep(reg, unused_days=30)
    changes.pin(reg.registry, ROOT, pinned.revision)
    for _ in range(4):
        reg.clock.now += 9 * DAY
        reg.resolve()
    plan = gc.plan(reg.registry, ROOT)
    assert [(row.target, row.whole, row.why) for row in plan.removals] == [
        ("t1", True, "not used for 30 days")
    ]
    assert (plan.revisions, plan.bytes) == (1, len(idle.pack))
    assert targets(reg) == {"t1", "t2", "t3"}  # A plan changes nothing.
    result = gc.collect(reg.registry)
    assert (result.revisions, result.entries) == (1, 1)
    assert targets(reg) == {"t2", "t3"}
    with pytest.raises(NotFound):
        reg.resolve("idle")
    assert len(reg.blobs()) == 3  # Downloads that began before the deletion go on.
    reg.clock.now += 1001
    gc.collect(reg.registry)
    assert reg.blobs() == reg.referenced() and len(reg.blobs()) == 2
    assert reg.publish(new_publication(reg, 4, name="idle", target="t1")).created


def test_each_namespace_is_collected_by_its_own_policy(reg: Inside) -> None:
    for namespace in ("team", "other"):
        for sequence in (1, 2, 3):
            one = new_publication(reg, sequence, namespace=namespace, target="t")
            with reg.registry.index.read() as unit:
                rows = unit.inventory.revisions(one.manifest.entry)
            reg.publish(one, rows[0].revision if rows else None)
    keep(reg, keep_revisions=1, keep_days=1)
    changes.set_policy(reg.registry, ROOT, Namespace("other"), Policy(keep_revisions=9, keep_days=1))
    reg.clock.now += 2 * DAY
    plan = gc.plan(reg.registry, ROOT)
    assert {(row.namespace, row.whole) for row in plan.removals} == {("team", False)}
    assert (plan.revisions, plan.objects) == (2, 0)
    assert len(gc.plan(reg.registry, ROOT, 1).removals) == 1
    changes.set_policy(reg.registry, ROOT, Namespace("other"), Policy(keep_revisions=2, keep_days=1))
    assert gc.plan(reg.registry, ROOT).revisions == 3
    assert gc.collect(reg.registry).revisions == 3
    reg.clock.now += 10 * DAY
    loose = gc.plan(reg.registry, ROOT).objects
    assert loose == 3 == gc.collect(reg.registry).objects


def test_the_time_of_an_offer_is_stored_now_and_then(reg: Inside) -> None:
    one = new_publication(reg)
    reg.publish(one)

    def last_used() -> int | None:
        return inventory.get_revision(reg.registry, ROOT, one.revision).last_used

    assert last_used() is None
    reg.resolve()
    assert last_used() == START
    reg.clock.now += resolve.USED_STEP_SECONDS
    reg.resolve()
    assert last_used() == START
    reg.clock.now += 1
    reg.resolve()
    assert last_used() == reg.registry.now


def test_a_namespace_above_its_bytes_loses_cheap_and_idle_entries(reg: Inside) -> None:
    dear = new_publication(reg, 1, measured={"compile": 3000.0})
    cheap = new_publication(reg, 2, measured={"compile": 12.0})
    pinned = new_publication(reg, 3, measured={})
    for one in (dear, cheap, pinned):
        reg.publish(one)
    second = new_publication(reg, 14, target="t1", measured={"compile": 3000.0})
    reg.publish(second, dear.revision)
    changes.pin(reg.registry, ROOT, pinned.revision)
    reg.clock.now += 2 * DAY
    size = sum(len(one.pack) for one in (dear, cheap, pinned, second))
    keep(reg, keep_bytes=size, keep_revisions=10)
    assert gc.plan(reg.registry, ROOT).revisions == 0
    keep(reg, keep_bytes=size - 1, keep_revisions=10)
    [row] = gc.plan(reg.registry, ROOT).removals
    # The revision is superseded: nobody is offered it.
    assert (row.revision, row.whole) == (dear.revision, False)
    keep(reg, keep_bytes=size - len(dear.pack) - 1, keep_revisions=10)
    assert [row.revision for row in gc.plan(reg.registry, ROOT).removals] == [dear.revision, cheap.revision]
    gc.collect(reg.registry)
    assert targets(reg) == {"t1", "t3"}
    keep(reg, keep_bytes=0)
    gc.collect(reg.registry)
    assert targets(reg) == {"t3"}
    assert gc.collect(reg.registry).revisions == 0


def test_a_fresh_entry_is_not_evicted(reg: Inside) -> None:
    reg.publish(new_publication(reg))
    keep(reg, keep_bytes=0)
    reg.clock.now += 3599
    assert gc.collect(reg.registry).revisions == 0
    reg.clock.now += 2
    assert gc.collect(reg.registry).entries == 1


def test_a_policy_applies_to_its_namespace_only(reg: Inside) -> None:
    here, there = new_publication(reg, 1), new_publication(reg, 1, namespace="other")
    reg.publish(here)
    reg.publish(there)
    keep(reg, unused_days=1)
    reg.clock.now += 2 * DAY
    gc.collect(reg.registry)
    page = inventory.search_entries(reg.registry, ROOT, Search(), None, 10)
    assert [row.namespace for row in page.rows] == ["other"]


def test_a_quota_stops_uploads_at_begin_and_at_commit(reg: Inside) -> None:
    first, second = new_publication(reg, 1), new_publication(reg, 2)
    early = reg.begin(second)
    reg.put(early, second.pack)
    reg.publish(first)
    keep(reg, quota_bytes=len(first.pack) + 10)
    with pytest.raises(StorageFull, match=r"team holds \d+ of the \d+ bytes.*an admin makes room"):
        reg.begin(new_publication(reg, 3))
    with pytest.raises(StorageFull, match="quota"):
        reg.commit(early, second)
    assert targets(reg) == {"t1"}
    changes.delete_entry(reg.registry, ROOT, first.manifest.entry, None)
    assert reg.commit(early, second).created


def test_a_tag_costs_no_bytes_and_has_the_pack_as_long_as_any_revision_has_it(reg: Inside) -> None:
    """Fail on code that counts the bytes of a tag, or collects them with the first of the two entries."""
    first = new_publication(reg, 1)
    reg.publish(first)
    tagged = dataclasses.replace(
        first.manifest, statement=dataclasses.replace(first.manifest.statement, tag=Tag("prod"))
    )
    again = Publication(tagged, reg.key.sign(tagged), first.pack)
    upload = reg.begin(again)
    reg.put(upload, again.pack)
    keep(reg, quota_bytes=len(first.pack) + 10)
    request = CommitRequest(again.envelope.decode(), None, deed="tag")
    assert publish.commit(reg.registry, ROOT, upload, request).created
    (row,) = changes.list_namespaces(reg.registry, ROOT)
    assert (row.revisions, row.bytes) == (2, len(first.pack))
    reg.clock.now += 10 * DAY
    gc.collect(reg.registry)
    keys = stored_keys(reg)
    assert len(keys) == 1, "what was sent for the tag is collected"
    changes.delete_entry(reg.registry, ROOT, first.manifest.entry, None)
    reg.clock.now += 10 * DAY
    gc.collect(reg.registry)
    assert stored_keys(reg) == keys
    changes.delete_entry(reg.registry, ROOT, tagged.entry, None)
    reg.clock.now += 10 * DAY
    gc.collect(reg.registry)
    assert stored_keys(reg) == []


def stored_keys(reg: Inside) -> list[str]:
    return sorted(one.key for one in reg.registry.packs.blobs.list())


def test_limits_of_the_settings_apply_to_a_namespace_without_its_own(reg: Inside) -> None:
    bounds = Settings(unused_days=2, keep_bytes="1KiB", quota_bytes=2000)
    assert bounds.keep_bytes == 1024
    reg = with_limits_of(reg, bounds)
    with pytest.raises(StorageFull, match="of the 2000 bytes"):
        reg.begin(new_publication(reg, 1, content=os.urandom(3000)))
    keep(reg, quota_bytes=BOUNDS["quota_bytes"][1])
    large = new_publication(reg, 1, content=os.urandom(3000))
    reg.publish(large)
    reg.clock.now += 7200
    [row] = gc.plan(reg.registry, ROOT).removals
    assert row.why.startswith("over 1024 bytes")
    keep(reg, keep_bytes=BOUNDS["keep_bytes"][1])
    assert gc.plan(reg.registry, ROOT).removals == ()
    reg.clock.now += 2 * DAY
    [row] = gc.plan(reg.registry, ROOT).removals
    assert row.why == "not used for 2 days"
    keep(reg, keep_bytes=BOUNDS["keep_bytes"][1], unused_days=3)
    assert gc.plan(reg.registry, ROOT).removals == ()


def test_a_lane_expires_after_30_days_where_no_setting_says_otherwise(reg: Inside) -> None:
    reg = with_limits_of(reg, Settings())
    reg.publish(new_publication(reg, 1))
    reg.publish(new_publication(reg, 2, lane="pr-1"))
    reg.clock.now += 29 * DAY
    assert gc.plan(reg.registry, ROOT).removals == ()
    reg.clock.now += 2 * DAY
    [row] = gc.plan(reg.registry, ROOT).removals
    assert (row.target, row.whole, row.why) == ("t2", True, "not used for 30 days")
    assert gc.plan(with_limits_of(reg, Settings(lane_days=36_600)).registry, ROOT).removals == ()


def with_limits_of(reg: Inside, settings: Settings) -> Inside:
    """Return the same registry with the limits that ``cachesvc serve`` would read from the settings."""
    bounds = limits_of(settings)
    limits = dataclasses.replace(
        reg.registry.limits, retention=bounds.retention, quota_bytes=bounds.quota_bytes
    )
    return dataclasses.replace(reg, registry=dataclasses.replace(reg.registry, limits=limits))


@pytest.mark.parametrize("whole", [True, False], ids=["bundles", "uploads"])
def test_publishers_at_once_all_succeed_where_all_fit(reg: Inside, whole: bool) -> None:
    """From the first byte to the commit, side by side and with one token; their pending bytes fit too."""
    packs = [new_publication(reg, number, content=b"x" * 200 + b"%02d" % number) for number in range(8)]
    keep(reg, quota_bytes=sum(len(one.pack) for one in packs))
    created: list[bool] = []

    def publish(one: Publication) -> None:
        created.append((reg.bundle if whole else reg.publish)(one).created)

    threads = [threading.Thread(target=publish, args=(one,)) for one in packs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created == [True] * 8
    with pytest.raises(StorageFull, match="of its quota"):
        reg.bundle(new_publication(reg, 9))


@pytest.mark.parametrize("where", ["namespace", "settings"])
def test_publishers_at_once_keep_to_a_quota(reg: Inside, where: str) -> None:
    packs = [new_publication(reg, number, content=b"x" * 200 + b"%02d" % number) for number in range(10)]
    uploads = [reg.begin(one) for one in packs]
    for upload, one in zip(uploads, packs, strict=True):
        reg.put(upload, one.pack)
    quota = 3 * max(len(one.pack) for one in packs)
    if where == "namespace":
        keep(reg, quota_bytes=quota)
    else:
        reg = with_limits_of(reg, Settings(quota_bytes=quota))
    refused: list[str] = []

    def commit(number: int) -> None:
        try:
            reg.commit(uploads[number], packs[number])
        except StorageFull as error:
            refused.append(str(error))

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7 and len(targets(reg)) == 3


def test_a_deletion_names_the_head_that_its_plan_saw(reg: Inside) -> None:
    first = new_publication(reg, 1)
    reg.publish(first)
    second = new_publication(reg, 2, target="t1")
    reg.publish(second, first.revision)
    entry = first.manifest.entry
    with pytest.raises(HeadConflict):
        changes.delete_entry(reg.registry, ROOT, entry, first.revision)
    with pytest.raises(InvalidRequest, match="head"):
        changes.delete_revision(reg.registry, ROOT, second.revision)
    changes.pin(reg.registry, ROOT, first.revision)
    with pytest.raises(InvalidRequest, match="pinned"):
        changes.delete_revision(reg.registry, ROOT, first.revision)
    with pytest.raises(InvalidRequest, match="pinned"):
        changes.delete_entry(reg.registry, ROOT, entry, second.revision)
    changes.unpin(reg.registry, ROOT, first.revision)
    changes.delete_revision(reg.registry, ROOT, first.revision)
    changes.delete_entry(reg.registry, ROOT, entry, second.revision)
    with pytest.raises(NotFound):
        changes.delete_entry(reg.registry, ROOT, entry, None)
    reg.clock.now += 1001
    gc.collect(reg.registry)
    assert reg.blobs() == set()


def test_only_an_admin_of_the_namespace_changes_anything(reg: Inside) -> None:
    one = new_publication(reg)
    reg.publish(one)
    writer = Token("t-w", "w", Role.write, "team")
    stranger = Token("t-s", "s", Role.admin, "other")
    lane = Token("t-l", "l", Role.write, "team", Lane("pr-1"))
    for action in (
        lambda by: changes.pin(reg.registry, by, one.revision),
        lambda by: changes.unpin(reg.registry, by, one.revision),
        lambda by: quarantine.withdraw(reg.registry, by, one.revision, ""),
        lambda by: changes.delete_entry(reg.registry, by, one.manifest.entry, None),
        lambda by: changes.delete_revision(reg.registry, by, one.revision),
        lambda by: changes.set_policy(reg.registry, by, TEAM, Policy()),
        lambda by: fsck.check(reg.registry, by),
        lambda by: gc.plan(reg.registry, by),
        lambda by: signers.remove_signer(reg.registry, by, "team", reg.key.public),
        lambda by: inventory.stats(reg.registry, by, "team", 1),
    ):
        for by in (writer, lane, stranger):
            with pytest.raises((Forbidden, NotFound)):
                action(by)
    assert [row.action for row in audit.audit_page(reg.registry, ROOT).rows] == ["signer.add"]
    with pytest.raises(NotFound):
        inventory.get_envelope(reg.registry, stranger, one.revision)
    with pytest.raises(NotFound):
        inventory.compare_revisions(reg.registry, stranger, one.revision, one.revision)


def test_a_lane_sees_itself_and_the_trunk(reg: Inside) -> None:
    for number, lane in enumerate((None, "pr-1", "pr-2"), 1):
        reg.publish(new_publication(reg, number, lane=lane))
    by = Token("t-l", "l", Role.write, "team", Lane("pr-1"))

    def visible_targets(**filters: Any) -> set[str]:
        page = inventory.search_entries(reg.registry, by, Search(**filters), None, 10)
        return {row.target for row in page.rows}

    assert visible_targets() == {"t1", "t2"}
    assert visible_targets(lanes=("pr-2",)) == set()
    assert visible_targets(lanes=("pr-2", "")) == {"t1"}


def test_a_withheld_revision_is_offered_to_nobody_until_it_is_released(reg: Inside) -> None:
    one = new_publication(reg)
    reg.publish(one)
    request = ResolveRequest(TEAM, ShortName("bert"), FINGERPRINT)
    assert one.revision.encode() in reg.answer(request)
    quarantine.withdraw(reg.registry, ROOT, one.revision, "wrong numbers")
    quarantine.withdraw(reg.registry, ROOT, one.revision, "another reason")
    assert one.envelope not in reg.answer(request)
    [rejected] = reg.resolve().rejected
    assert "wrong numbers" in str(rejected.differences[0])
    # A hit lifts a quarantine that reports have set, and never one that an operator has set.
    row = RevisionReport(one.revision, "hit")
    reports.report(reg.registry, ROOT, ReportRequest("0" * 32, FINGERPRINT, (row,)))
    assert reg.resolve().revisions == ()
    quarantine.release(reg.registry, ROOT, one.revision)
    assert len(reg.resolve().revisions) == 1
    with pytest.raises(NotFound, match="offered everywhere"):
        quarantine.release(reg.registry, ROOT, one.revision)


def run_fsck(reg: Inside, deep: bool = False) -> list[Finding]:
    findings: list[Finding] = []
    cursor = None
    while True:
        page = fsck.check(reg.registry, ROOT, cursor, deep)
        findings += page.findings
        cursor = page.next
        if cursor is None:
            return findings


def test_fsck_checks_everything_page_by_page(reg: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsck, "_PAGE", 2)
    packs = [new_publication(reg, number) for number in range(1, 6)]
    for one in packs:
        reg.publish(one)
    assert run_fsck(reg, deep=True) == []
    for key in list(reg.blobs()):
        reg.registry.packs.blobs.delete(key)
    for size in (1 << 30, 1):
        monkeypatch.setattr(fsck, "_DEEP_BYTES", size)
        findings = run_fsck(reg, deep=True)
        assert {row.problem for row in findings} == {"missing"}
        assert {row.revision for row in findings} == {one.revision for one in packs}
    with pytest.raises(InvalidRequest, match="cursor"):
        fsck.check(reg.registry, ROOT, "x")


def test_orphans_of_one_check_are_bounded(reg: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsck, "_PAGE", 2)
    monkeypatch.setattr(fsck, "MAX_FINDINGS", 3)
    for number in range(9):
        reg.registry.packs.blobs.put(f"packs/u-{number}", [b"x"])
    rounds = 0
    while findings := run_fsck(reg):
        assert len(findings) <= 4
        assert all(fsck.repair(reg.registry, ROOT, finding).done for finding in findings)
        rounds += 1
    assert rounds == 3 and reg.blobs() == set()


def test_a_page_of_entries_is_bounded_in_bytes(reg: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 6):
        reg.publish(new_publication(reg, number))
    monkeypatch.setattr(inventory_index, "PAGE_BYTES", 600)
    targets_seen, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        page = inventory.search_entries(reg.registry, ROOT, Search(), cursor, 100)
        assert 1 <= len(page.rows) < 5
        targets_seen += [row.target for row in page.rows]
        cursor, pages = page.next, pages + 1
    assert sorted(targets_seen) == [f"t{n}" for n in range(1, 6)] and pages > 1


def test_a_resolve_answers_if_its_use_cannot_be_stored(reg: Inside) -> None:
    one = new_publication(reg)
    reg.publish(one)

    class ReadOnly:
        read, look = reg.registry.index.read, reg.registry.index.look

        def write(self) -> Any:
            raise StorageFull("the index cannot be written")

    registry = dataclasses.replace(reg.registry, index=ReadOnly())
    request = ResolveRequest(TEAM, ShortName("bert"), FINGERPRINT)
    assert one.revision.encode() in reg.answer(request, registry=registry)


def test_a_finding_that_is_no_longer_true_is_left_alone(reg: Inside) -> None:
    one = new_publication(reg)
    reg.publish(one)
    [key] = reg.blobs()
    reg.registry.packs.blobs.delete(key)
    [finding] = run_fsck(reg)
    reg.registry.packs.blobs.put(key, [one.pack])
    assert not fsck.repair(reg.registry, ROOT, finding).done
    assert reg.pack(one.revision) == one.pack
    orphan = Finding("orphan", key, "", "")
    assert not fsck.repair(reg.registry, ROOT, orphan).done  # The index knows the object by now.
    assert not fsck.repair(reg.registry, ROOT, Finding("orphan", "packs/none", "", "")).done
    with pytest.raises(InvalidRequest, match="key"):
        fsck.repair(reg.registry, ROOT, Finding("orphan", "../../etc", "", ""))
    assert reg.blobs() == {key}


def test_a_repair_deletes_an_older_revision_alone_and_a_head_with_its_entry(reg: Inside) -> None:
    first, second = new_publication(reg, 1), new_publication(reg, 2, target="t1")
    reg.publish(first)
    reg.publish(second, first.revision)
    changes.pin(reg.registry, ROOT, first.revision)
    with reg.registry.index.read() as unit:
        keys = {revision: key for revision, _, key, _, _ in unit.inventory.packs("", 10_000)}
    reg.registry.packs.blobs.delete(keys[first.revision])
    [finding] = run_fsck(reg)
    assert fsck.repair(reg.registry, ROOT, finding).done
    assert reg.pack(second.revision) == second.pack
    reg.registry.packs.blobs.delete(keys[second.revision])
    [finding] = run_fsck(reg)
    assert fsck.repair(reg.registry, ROOT, finding).done
    assert run_fsck(reg) == []
    assert reg.publish(new_publication(reg, 3, target="t1")).created
    reg.clock.now += 1001
    gc.collect(reg.registry)
    assert reg.blobs() == reg.referenced()


def test_fsck_finds_an_altered_index(reg: Inside) -> None:
    one, two = new_publication(reg, 1), new_publication(reg, 2)
    reg.publish(one)
    reg.publish(two)
    other = SigningKey.generate()
    forged = other.sign(dataclasses.replace(one.manifest, provenance={"x": "y"}))
    with reg.registry.index._writing.begin() as connection:
        change = sa.text("UPDATE revisions SET envelope = :envelope WHERE revision = :revision")
        connection.execute(change, {"envelope": forged, "revision": one.revision})
    assert run_fsck(reg) == []
    [finding] = run_fsck(reg, deep=True)
    assert (finding.problem, finding.revision) == ("envelope", one.revision)
    assert fsck.repair(reg.registry, ROOT, finding).done
    assert targets(reg) == {"t2"}


def test_uploads_under_way_are_no_orphans(reg: Inside) -> None:
    one = new_publication(reg)
    upload = reg.begin(one)
    reg.put(upload, one.pack)
    assert run_fsck(reg, deep=True) == []
    assert reg.commit(upload, one).created


def test_differences_of_revisions_are_listed_fact_by_fact(reg: Inside) -> None:
    one = new_publication(reg, 1)
    two = new_publication(reg, 2, measured={"compile": 9.0}, provenance={"commit": "abc"})
    reg.publish(one)
    reg.publish(two)
    comparison = inventory.compare_revisions(reg.registry, ROOT, one.revision, two.revision)
    facts = {change.what: (change.before, change.after) for change in comparison.facts}
    assert facts["measured.compile"] == ("1.5", "9.0")
    assert facts["provenance.commit"] == ("", "abc")
    assert facts["statement.target"] == ("t1", "t2")
    assert "fingerprint.torch" not in facts
    assert [change.what for change in comparison.files] == ["inductor/aa/caa.py"]
    same = inventory.compare_revisions(reg.registry, ROOT, one.revision, one.revision)
    assert (same.facts, same.files, same.files_same) == ((), (), 1)


def test_a_prefix_of_a_digest_is_completed_if_it_is_unique(reg: Inside) -> None:
    one, two = new_publication(reg, 1), new_publication(reg, 2)
    reg.publish(one)
    reg.publish(two)
    assert inventory.complete(reg.registry, ROOT, "revision", one.revision.hex[:12]) == one.revision
    assert inventory.complete(reg.registry, ROOT, "entry", one.manifest.entry) == one.manifest.entry
    for wrong, error in (("zzzz", InvalidRequest), ("abc", InvalidRequest), ("0" * 40, NotFound)):
        with pytest.raises(error):
            inventory.complete(reg.registry, ROOT, "entry", wrong)
    stranger = Token("t-s", "s", Role.read, "other")
    with pytest.raises(NotFound):
        inventory.complete(reg.registry, stranger, "revision", one.revision.hex[:12])


def test_the_log_forgets_after_years(reg: Inside) -> None:
    keep(reg, keep_days=1)
    assert len(audit.audit_page(reg.registry, ROOT).rows) == 2
    reg.clock.now += (audit.KEPT_DAYS - 1) * DAY
    gc.collect(reg.registry, ROOT)
    reg.clock.now += 2 * DAY
    gc.collect(reg.registry)
    [row] = audit.audit_page(reg.registry, ROOT).rows
    assert (row.action, row.by) == ("gc.run", "t-root")
    with pytest.raises(InvalidRequest, match="cursor"):
        audit.audit_page(reg.registry, ROOT, "-1")


def test_the_default_policy_is_the_registry_s(tmp_path: Path) -> None:
    limits = dataclasses.replace(LIMITS, retention=dataclasses.replace(LIMITS.retention, unused_days=1))
    with inside(tmp_path, SigningKey.generate(), Clock(), limits) as reg:
        reg.publish(new_publication(reg))
        reg.clock.now += 2 * DAY
        assert gc.collect(reg.registry).entries == 1
