"""Test what operators query and change in the index, on both databases, and the upgrade that brought it."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from test_index import TEAM, heads, manifest, publish

from cachesvc.index.entries.entries import Published
from cachesvc.index.entries.search import Built, Search
from cachesvc.index.starts.usefulness import Start
from cachesvc.index.unit import Index
from cachesvc.schema.namespaces import Policy
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Namespace

INPUTS = {"a": {"args": [{"dtype": "bfloat16", "shape": [8, 128]}], "kwargs": {}}}


def manifest_of_target(sequence: int, **more: Any):
    return dataclasses.replace(manifest(sequence, target=f"t{sequence}"), **more)


def targets_with(index: Index, **filters: Any) -> list[str]:
    built = {name: filters.pop(name) for name in tuple(filters) if name in Built.__dataclass_fields__}
    search = Search(**filters, built=Built(**built))
    with index.read() as unit:
        return [row.target for row in unit.inventory.search(search, None, 100)[0]]


def test_entries_are_found_by_each_fact(index: Index) -> None:
    gpu = {"torch": "2.11.0+cu128", "gpu": "NVIDIA H200", "schema": 1}
    publish(
        index,
        manifest_of_target(1, fingerprint=gpu, workload=Workload(model=Digest.of(b"x"), inputs=INPUTS)),
        now=1,
    )
    publish(index, manifest_of_target(2), now=2)
    publish(index, manifest(3, lane="pr-1", target="t3"), now=3)
    assert targets_with(index) == ["t3", "t2", "t1"]
    assert targets_with(index, namespace="tea") == []
    assert targets_with(index, namespace="team", name="bert", tag="latest", lanes=("",)) == ["t2", "t1"]
    assert targets_with(index, lanes=("pr-1",)) == ["t3"]
    assert targets_with(index, gpu="h200") == targets_with(index, torch="2.11") == ["t1"]
    assert targets_with(index, torch="2.13") == ["t3", "t2"]
    assert (
        targets_with(index, torch="2.1")
        == targets_with(index, gpu="%")
        == targets_with(index, target="_")
        == []
    )
    assert (
        targets_with(index, model=Digest.of(b"x").hex[:8])
        == targets_with(index, model=Digest.of(b"x"))
        == ["t1"]
    )
    assert targets_with(index, dtype="bfloat16") == targets_with(index, shape="8x128") == ["t1"]
    assert targets_with(index, dtype="bfloat") == targets_with(index, shape="8x1") == []
    assert targets_with(index, unused_since=3) == ["t2", "t1"]


def test_pages_follow_each_other_without_a_gap(index: Index) -> None:
    for sequence in range(1, 8):
        # Several entries have the same second.
        publish(index, manifest_of_target(sequence), now=5 + sequence % 2)
    rows, after = [], None
    while True:
        with index.read() as unit:
            page, _ = unit.inventory.search(Search(), after, 2)
        rows += page
        if len(page) < 2:
            break
        after = (page[-1].published, page[-1].entry)
    assert sorted(row.target for row in rows) == [f"t{n}" for n in range(1, 8)]
    assert [row.published for row in rows] == sorted((row.published for row in rows), reverse=True)


def test_a_pin_protects_a_revision_and_its_entry(index: Index) -> None:
    one, two = publish(index, manifest(1)), publish(index, manifest(2))
    entry = manifest(1).entry
    with index.write() as unit:
        assert unit.inventory.pin(one, 50)
        assert unit.inventory.pin(one, 60)
        assert unit.entries.remove(one) is None
        assert unit.entries.remove_whole(entry, two) is None
        assert unit.inventory.revision(one).pinned == 50
        assert [
            (row.revision, row.pinned, row.is_head) for row in unit.ages.of_namespace(TEAM) if row.pinned
        ] == [(one, True, False)]
    with index.write() as unit:
        assert unit.inventory.pin(one, None)
        assert not unit.inventory.pin(Digest.of(b"none"), 1)
        assert unit.entries.remove_whole(entry, one) is None  # This revision is not the head.
        assert sorted(unit.entries.remove_whole(entry, two)) == ["packs/1", "packs/2"]
        assert unit.entries.remove_whole(entry, two) is None
        assert unit.inventory.revisions(entry) == []
    with index.write() as unit:  # The entry can be published anew.
        assert unit.entries.lock(manifest(3), 200) is None


def test_a_removed_entry_loses_its_reports(index: Index) -> None:
    revision = publish(index, manifest(1))
    with index.write() as unit:
        start = Start(revision, Digest.of(b"env"), {"gpu": "x"}, "hit", 1.5, 2.0, "", 100)
        unit.usefulness.add(start)
    with index.read() as unit:
        assert unit.sums.starts("team")[0]["hit"] == 1
        [row] = unit.sums.ranked("*", "dearest", 5)
        assert (row.hit, row.saved, row.bytes, row.compile_seconds) == (1, 1.5, 1001, 1.5)
        assert [row.target for row in unit.sums.ranked("team", "coldest", 5)] == ["t"]
        assert len(unit.sums.ranked("team", "heaviest", 5)) == 1
        assert unit.sums.ranked("other", "heaviest", 5) == []
        assert (unit.sums.named("*"), unit.sums.named("other")) == (1, 0)
    with index.write() as unit:
        unit.entries.remove_whole(manifest(1).entry, revision)
    with index.read() as unit:
        assert unit.sums.starts("*")[0]["hit"] == 0
        assert unit.usefulness.of([revision]) == {}


def test_rankings_are_the_same_of_a_small_and_of_a_large_namespace(index: Index) -> None:
    other = Namespace("other")
    for sequence in range(1, 9):
        of_target = manifest_of_target(sequence)
        elsewhere = dataclasses.replace(
            of_target,
            statement=dataclasses.replace(of_target.statement, namespace=other, sequence=90 + sequence),
        )
        for one in (of_target, elsewhere):
            revision = publish(index, one, key=f"packs/{one.statement.namespace}{sequence}")
            with index.write() as unit:
                unit.usefulness.add(
                    Start(revision, Digest.of(b"env"), {"gpu": "x"}, "hit", 10.0 - sequence, 2.0, "", 100)
                )

    def ranked() -> dict[str, list[str]]:
        with index.read() as unit:
            return {
                by: [row.target for row in unit.sums.ranked("team", by, 3)] for by in ("dearest", "heaviest")
            }

    large = ranked()
    assert large == {"dearest": ["t1", "t2", "t3"], "heaviest": ["t8", "t7", "t6"]}
    with index.write() as unit:  # many others: the namespace becomes a small one
        for sequence in range(100, 150):
            of_target = manifest_of_target(sequence)
            statement = dataclasses.replace(of_target.statement, namespace=other)
            assert unit.entries.lock(dataclasses.replace(of_target, statement=statement), 100) is None
        assert not unit.sums._is_large("team")
    assert ranked() == large


def test_the_places_of_revisions_are_found_at_once(index: Index) -> None:
    one, two = publish(index, manifest_of_target(1)), publish(index, manifest_of_target(2))
    with index.read() as unit:
        places = unit.inventory.places([one, two, Digest.of(b"none")])
    assert {revision: place[3] for revision, place in places.items()} == {one: "t1", two: "t2"}


def test_use_and_quarantine_are_stored(index: Index) -> None:
    one, two = publish(index, manifest_of_target(1), now=10), publish(index, manifest_of_target(2), now=10)
    with index.write() as unit:
        unit.entries.used([one], 90)
        assert unit.inventory.quarantine(two, 70, "bad")
        assert not unit.inventory.quarantine(two, 80, "worse")
    with index.read() as unit:
        rows = {row.revision: row for row in heads(index)}
        assert (rows[one].last_used, rows[one].quarantined) == (90, None)
        assert (rows[two].quarantined, rows[two].quarantine_why) == (70, "bad")
        assert [row.revision for row in unit.ages.idle(50, TEAM)[TEAM]] == [two]
        assert unit.ages.idle(5, TEAM) == {}
        [row] = unit.withheld.listing("*", 10)
        assert (row.revision, row.since, row.why, row.environment) == (two, 70, "bad", None)
        assert unit.withheld.listing("other", 10) == []
    with index.write() as unit:
        assert unit.inventory.quarantine(two, None)
        assert not unit.inventory.quarantine(two, None)
        assert unit.withheld.listing("*", 10) == []


def test_policies_and_sizes_are_stored(index: Index) -> None:
    with index.write() as unit:
        unit.namespaces.keep(Namespace("new"), Policy(keep_days=3), 5)
    publish(index, manifest_of_target(1))
    publish(index, manifest_of_target(2))
    with index.write() as unit:
        unit.namespaces.keep(TEAM, Policy(quota_bytes=1 << 40, keep_revisions=2), 5)
        assert unit.namespaces.policy("team") == Policy(quota_bytes=1 << 40, keep_revisions=2)
        assert unit.namespaces.quota("team", lock=True) == unit.namespaces.quota("team") == 1 << 40
        assert unit.namespaces.quota("none") is None
        assert unit.namespaces.policy("none") == Policy()
        assert unit.namespaces.bytes(TEAM) == 2003
        assert unit.namespaces.bytes(Namespace("new")) == 0
        assert [(row.namespace, row.entries, row.revisions) for row in unit.namespaces.all("*")] == [
            ("new", 0, 0),
            ("team", 2, 2),
        ]
        assert [row.bytes for row in unit.namespaces.all("team")] == [2003]


def test_the_log_is_read_by_pages_to_its_end(index: Index) -> None:
    for number in range(5):
        with index.write() as unit:
            unit.audit.add(100 + number, "t-1", "token.revoke", "team", f"t-{number}", label="x", none=None)
    with index.write() as unit:
        rows = unit.audit.page("*", None, 2, None, None)
        assert [row.subject for row in rows] == ["t-4", "t-3"]
        assert [row.subject for row in unit.audit.page("team", rows[-1].id, 9, "token", None)] == [
            "t-2",
            "t-1",
            "t-0",
        ]
        assert rows[0].details == {"label": "x"}
        assert unit.audit.page("other", None, 9, None, None) == []
        assert unit.audit.page("*", None, 9, "to%", None) == []
        assert len(unit.audit.page("*", None, 9, None, "-3")) == 1
        assert unit.audit.forget(103) == 3


OLD_ROWS = (
    "INSERT INTO namespaces (namespace, created) VALUES ('team', 1)",
    "INSERT INTO objects (key, digest, size, state, leased_until) VALUES ('{key}', '{d}', 9, 'live', 1)",
    "INSERT INTO entries (entry, namespace, lane, name, tag, target, partition, workload, head,"
    " head_sequence, published)"
    " VALUES ('{e}', 'team', '', 'bert', 'latest', 'old', '{d}', '{d}', '{r}', 5, 7)",
    "INSERT INTO revisions (revision, entry, sequence, envelope, signer, pack, pack_key, pack_size, files,"
    " fingerprint, scopes, measured, published, published_by)"
    " VALUES ('{r}', '{e}', 5, CAST('' AS {blob}), 'k', '{d}', '{key}', 9, 1, '{{}}', '[]', '{{}}', 7, 't')",
)


def test_entries_are_removed_beside_their_publishers(index: Index) -> None:
    """Four threads append to one entry while two remove it whole.

    Each append sees the line of revisions or its absence; every appended revision is there or was removed; no
    thread fails."""
    lock, appended, removed = threading.Lock(), set(), set()
    entry = manifest(1).entry

    def append(number: int) -> None:
        for turn in range(12):
            with index.write() as unit:
                new_manifest = manifest(1 + turn * 4 + number)
                key = f"packs/{new_manifest.statement.sequence}"
                unit.objects.add(key, 100)
                head = unit.entries.lock(new_manifest, 100)
                if head is None or head.sequence < new_manifest.statement.sequence:
                    revision = Digest.of(new_manifest.encode())
                    unit.entries.advance(new_manifest, Published(revision, b"e", "k", key, 100, "t"))
                    with lock:
                        appended.add(key)

    def remove(_: int) -> None:
        for _turn in range(40):
            with index.read() as unit:
                heads = [row.revision for row in unit.inventory.revisions(entry) if row.head]
            for head in heads:
                with index.write() as unit:
                    removed_keys = unit.entries.remove_whole(entry, head) or []
                with lock:
                    assert not removed & set(removed_keys)
                    removed.update(removed_keys)

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(append, number) for number in range(4)] + [
            pool.submit(remove, number) for number in range(2)
        ]
        for job in jobs:
            job.result(60)
    with index.read() as unit:
        remaining = {key for _, _, key, _, _ in unit.inventory.packs("", 10_000)}
        line = unit.inventory.revisions(entry)
    assert remaining | removed == appended and not remaining & removed
    assert [row.head for row in line] == [place == 0 for place in range(len(line))]
    assert removed
