"""Test the repositories, on both databases."""

from __future__ import annotations

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cachesvc.domain.access import Life, Role, Token
from cachesvc.domain.revisions import Head
from cachesvc.domain.usefulness import InertHost
from cachesvc.index.entries.entries import Published
from cachesvc.index.entries.heads import FEW, SMALL_BYTES, Candidate, Place
from cachesvc.index.packs.uploads import Upload
from cachesvc.index.starts.usefulness import Start
from cachesvc.index.unit import Index
from cachesvc.schema.access import SignerRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Manifest, PackRecord, Statement, Workload
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

TEAM, BERT, LATEST = Namespace("team"), ShortName("bert"), Tag("latest")
TRUNK = (None,)


def manifest(sequence: int, *, lane: str | None = None, tag: str = "latest", target: str = "t") -> Manifest:
    statement = Statement(TEAM, BERT, Target(target), sequence, Tag(tag), Lane(lane) if lane else None)
    pack = PackRecord(Digest.of(str(sequence).encode()), 1000 + sequence)
    facts = {"torch": "2.13", "cpu_flags": ["a", "b"], "schema": 1, "odd": True}
    return Manifest(
        statement, pack, (), (), facts, Workload(model=Digest.of(b"m")), ("host",), {"compile": 1.5}
    )


def publish(
    index: Index,
    revision_manifest: Manifest,
    *,
    key: str | None = None,
    now: int = 100,
    envelope: bytes = b"",
) -> Digest:
    revision, key = (
        Digest.of(revision_manifest.encode()),
        key or f"packs/{revision_manifest.statement.sequence}",
    )
    envelope = envelope or b"envelope " + revision.encode()
    with index.write() as unit:
        if unit.objects.content(key) is None:
            unit.objects.add(key, now + 50)
        unit.objects.received(key, revision_manifest.pack.digest, revision_manifest.pack.size, now + 50)
        unit.entries.lock(revision_manifest, now)
        unit.entries.advance(revision_manifest, Published(revision, envelope, "key", key, now, "t-1"))
    return revision


def heads(
    index: Index,
    *,
    namespace: Namespace = TEAM,
    name: ShortName = BERT,
    tag: Tag = LATEST,
    lane: Lane | None = None,
    limit: int = 10,
) -> list[Candidate]:
    with index.look() as looked:
        [rows] = looked.few_under_each([Place(namespace, name, tag, lane)], limit)
    return rows


def test_a_token_is_found_by_its_hash_and_revoked_once(index: Index) -> None:
    token = Token("t-1", "ci", Role.write, "team", Lane("pr-1"), Life(10, 20))
    with index.write() as unit:
        assert not unit.tokens.any_admin()
        unit.tokens.add(token, "hash-1")
        unit.tokens.add(
            dataclasses.replace(token, token="t-2", role=Role.admin, namespace="*", lane=None), "hash-2"
        )
    with index.write() as unit:
        assert unit.tokens.any_admin()
        assert unit.tokens.by_hash("hash-1", 20) == token
        assert unit.tokens.by_hash("hash-3", 20) is None
        assert unit.tokens.hashes_of("t-2") == ["hash-2"]
        assert [row.token for row in unit.tokens.all("*")] == ["t-1", "t-2"]
        assert [row.token for row in unit.tokens.all("team")] == ["t-1"]
        assert unit.tokens.revoke("t-1", 15)
        assert unit.tokens.revoke("t-1", 99)
        assert not unit.tokens.revoke("t-9", 99)
        assert unit.tokens.get("t-1") == dataclasses.replace(token, life=Life(10, 20, 15))


def test_signers_of_a_namespace_are_its_own_and_the_global_ones(index: Index) -> None:
    with index.write() as unit:
        for namespace, key in (("*", "a"), ("team", "b"), ("other", "c"), ("team", "a"), ("team", "b")):
            unit.signers.add(SignerRecord(namespace, key, "label"), 5)
    with index.read() as unit:
        assert sorted(unit.signers.accepted("team")[0]) == ["a", "b"]
        assert sorted(unit.signers.accepted("third")[0]) == ["a"]
        assert {(row.namespace, row.key) for row in unit.signers.all("team")} == {
            ("team", "a"),
            ("team", "b"),
        }
        assert len(unit.signers.all("*")) == 4


def test_an_upload_keeps_its_first_object_only(index: Index) -> None:
    upload = Upload("u-1", "t-1", TEAM, BERT, Lane("pr-1"), 7, 100)
    with index.write() as unit:
        unit.uploads.add(upload)
    with index.write() as unit:
        assert unit.uploads.get("u-1") == upload
        assert unit.uploads.hold("u-1", "packs/a")
        assert not unit.uploads.hold("u-1", "packs/b")
        assert unit.uploads.lease("u-1", 200)
        assert not unit.uploads.lease("u-2", 200)
        assert unit.uploads.get("u-1") == dataclasses.replace(upload, key="packs/a", leased_until=200)
        assert unit.uploads.drop_over(200) == 0
        assert unit.uploads.drop_over(201) == 1
        assert unit.uploads.get("u-1") is None


def test_objects_are_collected_only_if_loose(index: Index) -> None:
    publish(index, manifest(1), key="packs/kept", now=100)
    with index.write() as unit:
        unit.objects.add("packs/leased", 500)
        unit.objects.add("packs/over", 50)
    with index.write() as unit:
        assert [facts.key for facts in unit.objects.loose(300, 10)] == ["packs/over"]
        assert not unit.objects.mark("packs/kept", 10_000)
        assert not unit.objects.mark("packs/leased", 300)
        assert unit.objects.mark("packs/over", 300)
        assert unit.objects.mark("packs/over", 300)
        assert not unit.objects.lease("packs/over", 900)
        assert not unit.objects.received("packs/over", Digest.of(b""), 1, 900)
        assert unit.objects.content("packs/over") is None
        unit.objects.forget("packs/leased")
        unit.objects.forget("packs/over")
    with index.read() as unit:
        assert unit.objects.loose(300, 10) == []
        assert [facts.key for facts in unit.objects.loose(501, 10)] == ["packs/leased"]


def test_an_entry_moves_its_head_and_shows_it(index: Index) -> None:
    first, second = manifest(1), manifest(2)
    with index.write() as unit:
        assert unit.entries.lock(first, 100) is None
    one = publish(index, first, now=100)
    with index.write() as unit:
        assert unit.entries.lock(second, 101) == Head(one, 1)
    two = publish(index, second, now=101)
    with index.read() as unit:
        [candidate] = heads(index)
        assert (candidate.revision, candidate.pack.size, candidate.at.second) == (two, 1002, 101)
        assert json.loads(candidate.built_for.fingerprint) == first.fingerprint
        assert json.loads(candidate.built_for.scopes) == ["host"]
        assert (candidate.entry, candidate.model) == (first.entry, Digest.of(b"m"))
        assert unit.inventory.revision(one) is not None
        assert candidate.envelope.data == b"envelope " + two.encode()
        with index.look() as view:
            both = view.envelopes([one, two, Digest.of(b"none")])
        assert both == {key: b"envelope " + key.encode() for key in (one, two)}
        assert (candidate.envelope.size, candidate.pack.key, candidate.withheld) == (
            9 + 71,
            "packs/2",
            False,
        )
        place = unit.pack_places.of_revision(one)
        assert (place.namespace, place.lane, place.key, place.size) == (TEAM, None, "packs/1", 1001)
        assert unit.pack_places.of_revision(Digest.of(b"none")) is None
        namespace, summary = unit.listing.summary(first.entry)
        assert (namespace, summary.revision, summary.sequence, summary.files) == (TEAM, two, 2, 0)
        assert summary.measured == {"compile": 1.5}


def test_queries_stay_within_namespace_name_tag_and_lane(index: Index) -> None:
    for sequence, (lane, tag) in enumerate(
        ((None, "latest"), ("pr-1", "latest"), ("pr-2", "latest"), (None, "v1")), 1
    ):
        publish(index, manifest(sequence, lane=lane, tag=tag))
    with index.read() as unit:

        def lanes(lane: str | None = None, tag: str = "latest") -> set[str]:
            return {row.lane for row in heads(index, tag=Tag(tag), lane=Lane(lane) if lane else None)}

        assert lanes() == {""}
        assert lanes("pr-1") == {"", "pr-1"}
        assert lanes("pr-1", tag="v1") == {""}
        assert heads(index, name=ShortName("bart")) == []
        assert heads(index, namespace=Namespace("tea")) == []
        assert unit.listing.tags(TEAM, BERT, TRUNK) == ["latest", "v1"]
        assert unit.listing.tags(TEAM, BERT, [Lane("pr-1")]) == ["latest"]
        [name] = unit.listing.names(TEAM, None)
        assert (name.name, name.tags, name.entries, name.bytes) == ("bert", ("latest", "v1"), 4, 4010)
        assert unit.listing.names(TEAM, TRUNK)[0].entries == 2
        assert len(unit.listing.entries(TEAM, None, None, None)) == 4
        assert len(unit.listing.entries(TEAM, TRUNK, BERT, Tag("v1"))) == 1
        keys = [manifest(1).entry, manifest(2, lane="pr-1").entry]
    with index.look() as view:
        assert len(view.by_key(TEAM, BERT, keys, Lane("pr-1"))) == 2
        [trunk] = view.by_key(TEAM, BERT, keys, None)
        assert (trunk.entry, trunk.envelope.data) == (keys[0], None)
        assert view.by_key(TEAM, ShortName("bart"), keys, None) == []


def test_heads_are_newest_first_and_limited(index: Index) -> None:
    for sequence in (3, 1, 2):
        publish(index, manifest(sequence, target=f"t{sequence}"), now=100 + sequence)
    assert [row.slot.target for row in heads(index, limit=2)] == ["t3", "t2"]


def test_small_envelopes_come_with_few_heads(index: Index) -> None:
    large = publish(index, manifest(99, target="large"), now=99, envelope=b"x" * (SMALL_BYTES + 1))
    for sequence in range(1, FEW - 1):
        publish(index, manifest(sequence, target=f"t{sequence}"), now=100 + sequence)
    rows = heads(index, limit=FEW)
    assert len(rows) == FEW - 1 and rows[-1].revision == large
    assert (rows[-1].envelope.data, rows[-1].envelope.size) == (None, SMALL_BYTES + 1)
    assert all(row.envelope.data == b"envelope " + row.revision.encode() for row in rows[:-1])
    for sequence in (FEW, FEW + 1):
        publish(index, manifest(sequence, target=f"t{sequence}"), now=200 + sequence)
        with index.look() as looked:
            rows = looked.newest(Place(TEAM, BERT, LATEST), FEW + 5)
        assert len(rows) == sequence and rows[-1].revision == large
        assert rows[0].slot.target == f"t{sequence}"
        assert not any(row.envelope.data for row in rows)
    assert len(heads(index, limit=FEW)) == FEW


def test_several_places_are_queried_at_once(index: Index) -> None:
    """Each place has its own rows, also if one has too many, and if one has none."""
    for sequence in range(1, FEW + 2):
        publish(index, manifest(sequence, target=f"t{sequence}"), now=100 + sequence)
    publish(index, manifest(90, tag="v1"))
    places = [Place(TEAM, BERT, Tag(tag)) for tag in ("v1", "latest", "v2", "v1", "latest")]
    with index.look() as looked:
        one, many, none, *again = looked.few_under_each(places)
        assert looked.few_under_each([]) == []
    assert ([row.slot.tag for row in one], len(many), none) == (["v1"], FEW, [])
    assert again == [one, many]


def test_a_head_is_never_removed(index: Index) -> None:
    revisions = [publish(index, manifest(sequence)) for sequence in (1, 2, 3)]
    publish(index, manifest(9, target="other"))
    with index.write() as unit:
        late = 101  # all were published at 100
        rows = unit.ages.superseded(1, late)[TEAM]
        assert {(row.revision, row.is_head, row.newer) for row in rows} == {
            (revisions[0], False, 2),
            (revisions[1], False, 1),
        }
        assert [row.revision for row in unit.ages.superseded(2, late, TEAM)[TEAM]] == [revisions[0]]
        assert unit.ages.superseded(2, late, Namespace("other")) == {}
        assert unit.ages.superseded(1, 100) == {}
        assert unit.entries.remove(revisions[2]) is None
        assert unit.entries.remove(revisions[0]) == "packs/1"
        assert unit.entries.remove(revisions[0]) is None
        assert unit.ages.superseded(2, late) == {}
        assert len(unit.inventory.packs("", 10_000)) == 3


def test_a_transaction_that_raises_leaves_nothing(index: Index) -> None:
    def break_off() -> None:
        with index.write() as unit:
            unit.objects.add("packs/a", 1)
            unit.signers.add(SignerRecord("team", "k"), 1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    with index.read() as unit:
        assert unit.objects.loose(100, 10) == []
        assert unit.signers.all("*") == []


def test_publishers_of_one_entry_wait_for_each_other(index: Index) -> None:
    """Eight threads append to one new entry: every thread sees the head that the one before it left."""
    start = threading.Barrier(8)

    def work(_: int) -> int:
        start.wait(10)
        with index.write() as unit:
            head = unit.entries.lock(manifest(1), 100)
            new_manifest = manifest(head.sequence + 1 if head else 1)
            key = f"packs/{new_manifest.statement.sequence}"
            unit.objects.add(key, 100)
            unit.entries.advance(
                new_manifest, Published(Digest.of(new_manifest.encode()), b"e", "k", key, 100, "t")
            )
        return new_manifest.statement.sequence

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(work, range(8))) == list(range(1, 9))


def test_collection_beside_commits_never_takes_a_committed_object(index: Index) -> None:
    """Some threads commit objects whose lease has ended, and others mark the objects: one of the two wins."""
    count = 30
    with index.write() as unit:
        for number in range(1, count + 1):
            unit.objects.add(f"packs/{number}", 10)
            unit.objects.received(f"packs/{number}", Digest.of(b"x"), 1, 10)

    def commit(number: int) -> bool:
        new_manifest, key = manifest(number, target=f"t{number}"), f"packs/{number}"
        with index.write() as unit:
            if not unit.objects.lease(key, 10):
                return False
            unit.entries.lock(new_manifest, 100)
            unit.entries.advance(
                new_manifest, Published(Digest.of(new_manifest.encode()), b"e", "k", key, 100, "t")
            )
        return True

    def mark(number: int) -> bool:
        with index.write() as unit:
            return unit.objects.mark(f"packs/{number}", 100)

    numbers = range(1, count + 1)
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2) as other:
        committing, marking = pool.map(commit, numbers), other.map(mark, numbers)
        outcomes = list(zip(committing, marking, strict=True))
    assert all(committed != marked for committed, marked in outcomes)
    with index.read() as unit:
        live = {key for _, _, key, _, _ in unit.inventory.packs("", 10_000)}
    assert live == {
        f"packs/{number}" for number, (committed, _) in zip(numbers, outcomes, strict=True) if committed
    }


def test_the_index_is_ready(index: Index) -> None:
    index.check()


def test_starts_are_counted_by_environment_from_several_threads(index: Index) -> None:
    revision = publish(index, manifest(1))
    here, there = Digest.of(b"here"), Digest.of(b"there")

    def count(environment: Digest, state: str) -> None:
        with index.write() as unit:
            assert set(unit.usefulness.subjects([revision, there])) == {revision}
            unit.usefulness.add(Start(revision, environment, {"gpu": "x"}, state, 1.5, 2.0, "", 100))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, [here, there] * 20, ["hit", "inert", "partial", "hit"] * 10))
    with index.read() as unit:
        uses = {use.environment: use for use in unit.usefulness.of([revision])[revision]}
    assert (uses[here].hit, uses[here].partial, uses[here].saved) == (10, 10, 30.0)
    assert (uses[there].hit, uses[there].inert, uses[there].spent) == (10, 10, 40.0)


def test_a_quarantine_belongs_to_one_environment_and_ends_with_its_revision(index: Index) -> None:
    first = publish(index, manifest(1))
    publish(index, manifest(2))
    here, there, now = Digest.of(b"here"), Digest.of(b"there"), 100
    with index.write() as unit:
        for environment in (here, there):
            unit.usefulness.add(Start(first, environment, {}, "inert", 0.0, 0.0, "grad mode", now))
            for host in (InertHost("t-1", "1"), InertHost("t-1", "1"), InertHost("t-2", "1")):
                hosts = unit.usefulness.inert(first, environment, host, now)
            assert hosts == [InertHost("t-1", "1"), InertHost("t-2", "1")]
        assert unit.usefulness.quarantine(first, here, now)
        assert not unit.usefulness.quarantine(first, here, now + 1)
    with index.read() as unit:
        assert unit.usefulness.quarantined([first]) == {(first, here): "grad mode"}
    with index.write() as unit:
        assert unit.usefulness.lift(first, here)
        assert not unit.usefulness.lift(first, there)
        assert unit.usefulness.hosts(first, here) == unit.usefulness.hosts(first, there) == []
        unit.usefulness.inert(first, here, InertHost("t-1", "1"), now)
    with index.write() as unit:
        assert unit.entries.remove(first)
    with index.read() as unit:
        assert unit.usefulness.of([first]) == {} and unit.usefulness.hosts(first, here) == []
