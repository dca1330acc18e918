"""A registry and its mirror, each a process of its own: what the mirror serves, and what it serves on with
when the registry is gone."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mirroring import Pair, bytes_out, eventually, mirror_of, resolved, running_pair
from registry_making import Server, launch, make, ok, refused

from benchmarks.hosts import QUICK
from cachesvc_client.environment.detect import detect
from cachesvc_client.wire.digest import Digest
from tests.conftest import new_bucket
from tests.security.attacker import start
from tests.services.ceph import Gateway
from tests.services.lying_relay import lying_relay
from tests.services.relay import relay


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with running_pair(tmp_path) as started:
        yield started


def test_a_pack_comes_once_for_all_readers_and_stays_when_the_registry_is_gone(pair: Pair) -> None:
    made = make(pair.upstream.key, content=b"kernel" * 50_000)
    ok(pair.upstream.api().publish(made))
    reader = pair.reader()
    eventually(lambda: resolved(reader) == [made.revision], "the head")
    assert bytes_out(pair.upstream) == 0  # heads come without packs

    [offered] = ok(reader.resolve())["revisions"]
    assert offered["envelope"].encode() == made.envelope  # the same signed bytes
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: reader.pack(made.revision), range(16)))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.content for answer in answers} == {made.pack}
    assert bytes_out(pair.upstream) == len(made.pack)

    pair.upstream.kill()
    assert reader.pack(made.revision).content == made.pack
    assert resolved(reader) == [made.revision]
    assert reader.pack(made.revision, Range="bytes=10-19").content == made.pack[10:20]


def test_services_start_from_the_mirror_and_go_on_when_the_registry_is_gone(
    pair: Pair, tmp_path: Path
) -> None:
    path = "aa/c" + 24 * "a" + ".picked_kernel"
    made = make(pair.upstream.key, name="model", path=path, fingerprint=dict(detect()))
    ok(pair.upstream.api().publish(made))
    secret = pair.token("report")["secret"]

    def installed(node: str) -> list[str]:
        (tmp_path / node).mkdir()
        told = {
            **QUICK,  # the entry has this machine's instructions
            "CACHESVC_URL": pair.mirror.url,
            "CACHESVC_TOKEN": secret,
            "CACHESVC_TRUST_ROOT": str(pair.root),  # that of the registry
        }
        return start("attached.py", json.dumps({"name": "team/model"}), place=tmp_path / node, **told)[
            "installed"
        ]

    offer = {"name": "model", "fingerprint": dict(detect())}
    eventually(lambda: resolved(pair.mirror.api(secret), **offer) == [made.revision], "the head")
    assert installed("first") == [made.revision]
    assert installed("second") == [made.revision]
    assert bytes_out(pair.upstream) == len(made.pack)
    pair.upstream.kill()
    assert installed("third") == [made.revision]


def test_a_mirror_that_starts_without_its_registry_goes_on_with_what_it_has(pair: Pair) -> None:
    made = make(pair.upstream.key)
    ok(pair.upstream.api().publish(made))
    secret = pair.token("read")["secret"]
    eventually(lambda: resolved(pair.mirror.api(secret)) == [made.revision], "the head")
    assert pair.mirror.api(secret).pack(made.revision).content == made.pack
    pair.upstream.kill()
    pair.mirror.kill()
    pair.mirror.start()
    assert resolved(pair.mirror.api(secret)) == [made.revision]
    assert pair.mirror.api(secret).pack(made.revision).content == made.pack


def test_an_upstream_that_is_killed_in_the_middle_of_a_pack_leaves_no_half_of_it(
    pair: Pair, tmp_path: Path
) -> None:
    made = make(pair.upstream.key, content=os.urandom(3_000_000))
    ok(pair.upstream.api().publish(made))
    address = pair.upstream.url.removeprefix("http://")
    pair.upstream.options = ["--port", address.rpartition(":")[2]]
    with relay(address) as between:
        mirror = mirror_of(pair.upstream, tmp_path / "second", pair.root, pair.secret, url=between.url)
        with mirror.running():
            reader = mirror.api(pair.token("read")["secret"])
            eventually(lambda: resolved(reader) == [made.revision], "the head")

            def kill() -> None:
                pair.upstream.kill()
                between.close()  # else what the upstream wrote before arrives from the kernel's buffers

            between.at_limit = kill
            between.limit = between.sent + 1_000_000
            refused(reader.pack(made.revision), 503, "unavailable")
            assert list((mirror.data / "blobs" / "objects" / "packs").glob("*")) == []
            assert resolved(reader) == [made.revision]
            pair.upstream.start()
            between.open()
            eventually(lambda: reader.pack(made.revision).status_code == 200, "the whole pack")
            assert reader.pack(made.revision).content == made.pack


def test_a_reader_of_a_slow_pack_asks_again_while_the_download_goes_on(pair: Pair, tmp_path: Path) -> None:
    made = make(pair.upstream.key)
    ok(pair.upstream.api().publish(made))
    passes = threading.Event()

    def slow(_method: str, path: str, _body: bytes) -> None:
        if path.endswith("/pack"):
            passes.wait(120)

    with lying_relay(pair.upstream.url) as between:
        mirror = mirror_of(pair.upstream, tmp_path / "second", pair.root, pair.secret, url=between.url)
        with mirror.running():
            reader = mirror.api(pair.token("read")["secret"])
            eventually(lambda: resolved(reader) == [made.revision], "the head")
            between.alter = slow
            refused(reader.pack(made.revision), 503, "unavailable", "on its way")
            passes.set()
            eventually(lambda: reader.pack(made.revision).content == made.pack, "the pack")


def test_whoever_tries_tokens_takes_no_place_of_those_that_the_upstream_knows(
    pair: Pair, tmp_path: Path
) -> None:
    holds = threading.Event()

    def slow(_method: str, path: str, _body: bytes) -> None:
        if path.endswith("/whoami") and holds.is_set():
            time.sleep(2)

    with lying_relay(pair.upstream.url) as between:
        mirror = mirror_of(pair.upstream, tmp_path / "second", pair.root, pair.secret, url=between.url)
        with mirror.running():
            known = mirror.api(pair.token("read")["secret"])
            ok(known.http.get("/v1/whoami"))
            between.alter = slow
            holds.set()
            with ThreadPoolExecutor(40) as pool:
                guesses = [f"csv_{os.urandom(16).hex()}" for _ in range(40)]
                tries = [pool.submit(mirror.api(guess).http.get, "/v1/whoami") for guess in guesses]
                statuses = {one.result().status_code for one in tries}
            assert statuses <= {401, 429, 503} and 429 in statuses, statuses
            holds.clear()
            eventually(lambda: known.http.get("/v1/whoami").status_code == 200, "the known token")


def test_a_mirror_without_a_root_or_with_half_of_its_settings_does_not_start(
    pair: Pair, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    for change, words in (
        ({"UPSTREAM_ROOT": str(wrong)}, "wrong.json"),
        ({"UPSTREAM_ROOT": ""}, "upstream_root is not"),
        ({"UPSTREAM_TOKEN": ""}, "neither upstream_token nor upstream_token_file is"),
        ({"UPSTREAM_URL": ""}, "upstream_url is not"),
        ({"DATABASE": "postgresql://u:p@127.0.0.1/x"}, "one process with its index in data"),
        ({"UPSTREAM_URL": "http://10.0.0.1:8750"}, "expected https"),
    ):
        env = pair.mirror.env | {f"CACHESVC_SERVER_{name}": value for name, value in change.items()}
        process = launch(tmp_path / "unused", **env)
        assert process.wait(60) != 0
        error = process.stderr.read()
        assert words in error and "Traceback" not in error, error


def test_a_pack_that_no_reader_asked_for_is_not_there_without_the_registry(pair: Pair) -> None:
    made = make(pair.upstream.key)
    ok(pair.upstream.api().publish(made))
    reader = pair.reader()
    eventually(lambda: resolved(reader) == [made.revision], "the head")
    pair.upstream.kill()
    refused(reader.pack(made.revision), 503, "unavailable")


def test_a_new_head_a_quarantine_its_end_and_a_deletion_follow(pair: Pair) -> None:
    admin, reader = pair.upstream.api(), pair.reader()
    first, other = make(pair.upstream.key), make(pair.upstream.key, name="other")
    ok(admin.publish(first))
    ok(admin.publish(other))
    eventually(lambda: resolved(reader) == [first.revision], "the head")
    second = make(pair.upstream.key, content=b"better")
    ok(admin.publish(second, first.revision))
    eventually(lambda: resolved(reader) == [second.revision], "the new head")
    assert reader.pack(second.revision).content == second.pack
    refused(reader.pack(first.revision), 404, "not_found")

    ok(admin.http.put(f"/v1/revisions/{second.revision}/quarantine", json={"why": "wrong numbers"}))
    eventually(lambda: resolved(reader) == [], "the quarantine")
    assert "wrong numbers" in reader.resolve().text
    refused(reader.pack(second.revision), 404, "not_found", "wrong numbers")
    ok(admin.http.delete(f"/v1/revisions/{second.revision}/quarantine"))
    eventually(lambda: resolved(reader) == [second.revision], "the end of the quarantine")

    ok(admin.http.delete(f"/v1/entries/{second.manifest.entry}"))
    eventually(lambda: reader.resolve().status_code == 404, "the deletion")
    assert resolved(reader, name="other") == [other.revision]


def test_a_signer_that_was_revoked_counts_no_more_at_the_mirror(pair: Pair) -> None:
    made = make(pair.upstream.key)
    ok(pair.upstream.api().publish(made))
    reader = pair.reader()
    eventually(lambda: resolved(reader) == [made.revision], "the head")
    body = {"namespace": "*", "key": pair.upstream.key.public, "reason": "leaked"}
    ok(pair.upstream.api().http.post("/v1/revocations", json=body))
    eventually(lambda: resolved(reader) == [], "the revocation")
    refused(reader.pack(made.revision), 404, "not_found")


def test_lanes_are_mirrored_for_those_who_read_them(pair: Pair) -> None:
    made = make(pair.upstream.key, lane="pr-1")
    ok(pair.upstream.api().publish(made))
    of_lane = pair.mirror.api(pair.token("read", lane="pr-1")["secret"])
    eventually(lambda: resolved(of_lane, lane="pr-1") == [made.revision], "the head")
    other = pair.mirror.api(pair.token("read", lane="pr-2")["secret"])
    refused(other.resolve(lane="pr-1"), 403, "forbidden")
    refused(other.pack(made.revision), 404, "not_found")


def test_packs_over_keep_bytes_go_and_come_again(tmp_path: Path) -> None:
    with running_pair(tmp_path, keep_bytes="30000", grace_seconds="0") as pair:
        made, other = (make(pair.upstream.key, target=name, content=os.urandom(20_000)) for name in "ab")
        for publication in (made, other):
            ok(pair.upstream.api().publish(publication))
        reader = pair.reader()
        eventually(lambda: len(resolved(reader)) == 2, "the heads")
        for publication in (made, made, other, other, made):
            assert reader.pack(publication.revision).content == publication.pack
        # The mirror has room for one: each of the three changes moved a pack.
        assert bytes_out(pair.upstream) == 2 * len(made.pack) + len(other.pack)
        packs = pair.mirror.data / "blobs" / "objects" / "packs"

        def collected() -> bool:
            ok(pair.mirror.api().http.post("/v1/gc"))
            return len(list(packs.iterdir())) == 1

        eventually(collected, "the collection of the packs that went")
        assert len(resolved(reader)) == 2


def test_packs_of_a_mirror_lie_in_a_bucket(pair: Pair, gateway: Gateway, tmp_path: Path) -> None:
    made = make(pair.upstream.key)
    ok(pair.upstream.api().publish(made))
    bucket = new_bucket(gateway.endpoint, gateway.client)
    mirror = mirror_of(
        pair.upstream,
        tmp_path / "second",
        pair.root,
        pair.secret,
        bucket=bucket,
        bucket_endpoint=gateway.endpoint,
    )
    mirror.env |= gateway.variables
    with mirror.running():
        reader = mirror.api(pair.token("read")["secret"])
        eventually(lambda: resolved(reader) == [made.revision], "the head")

        def link() -> str:
            return str(ok(reader.resolve(model=Digest.of(os.urandom(8))))["revisions"][0]["pack_url"])

        assert link().startswith("/v1/revisions/")  # it is not in the bucket yet
        assert reader.pack(made.revision).content == made.pack
        linked = eventually(lambda: (url := link()).startswith("http") and url, "a link to the bucket")
        assert reader.fetch(linked).content == made.pack
        assert bytes_out(pair.upstream) == len(made.pack)


def test_operators_change_entries_at_the_registry_and_not_at_the_mirror(pair: Pair) -> None:
    made = make(pair.upstream.key)
    ok(pair.upstream.api().publish(made))
    admin = pair.mirror.api()
    eventually(lambda: resolved(admin) == [made.revision], "the head")
    for method, path, body in (
        ("PUT", f"/v1/revisions/{made.revision}/quarantine", {"why": "x"}),
        ("DELETE", f"/v1/entries/{made.manifest.entry}", None),
        ("POST", "/v1/signers", {"namespace": "team", "key": pair.upstream.key.public}),
        ("PUT", "/v1/namespaces/team/policy", {"keep_days": 7}),
        ("PUT", "/v1/trust/root", {"root": "{}"}),
    ):
        refused(admin.http.request(method, path, json=body), 403, "forbidden", pair.upstream.url)
    assert ok(admin.http.post("/v1/gc"))["revisions"] == 0
    page = ok(admin.http.post("/v1/fsck"))
    assert page["findings"] == []
    assert resolved(admin) == [made.revision]


def test_a_folder_of_a_registry_is_never_emptied_by_a_mirror(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = Server(tmp_path / "own" / "data")
    with own.running():
        ok(own.api().publish(make(own.key)))
    own.env = pair.mirror.env
    process = launch(own.data, **own.env)
    assert process.wait(60) == 2
    assert "holds a registry of its own" in process.stderr.read()
    own.env = {}
    with own.running():
        assert len(resolved(own.api())) == 1

    assert pair.mirror.stop() == 0
    process = launch(pair.mirror.data)
    assert process.wait(60) == 2
    assert "upstream_url is not set" in process.stderr.read()


def test_another_mirror_of_a_mirror_fills_itself(pair: Pair, tmp_path: Path) -> None:
    made = make(pair.upstream.key)
    ok(pair.upstream.api().publish(made))
    secret = pair.token("read", "*")["secret"]
    second = mirror_of(pair.mirror, tmp_path / "second", pair.root, secret)
    with second.running():
        reader = second.api(pair.token("read")["secret"])
        eventually(lambda: resolved(reader) == [made.revision], "the head")
        assert reader.pack(made.revision).content == made.pack
