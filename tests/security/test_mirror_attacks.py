"""Attacks on and by a mirror: an upstream that lies to it, and a mirror that lies to its clients."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mirroring import Pair, bytes_out, eventually, metric, mirror_of, resolved
from registry_making import Api, Publication, Server, make, ok, refused

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.trust_root.registry_metadata import refresh_policy
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Untrusted
from tests.services.lying_relay import LyingRelay, lying_relay

from .attacker import start

NAME = "team/model"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A registry, and a mirror that is not started and reaches the registry by ``relay``."""
    (tmp_path / "upstream").mkdir()
    upstream = Server(tmp_path / "upstream" / "data").start()
    (tmp_path / "operator").mkdir()
    root = upstream.pin_root(tmp_path / "operator")
    body = {"label": "mirror", "role": "read", "namespace": "*", "days": 1}
    secret = ok(upstream.api().http.post("/v1/tokens", json=body))["secret"]
    mirror = mirror_of(upstream, tmp_path / "mirror", root, secret)
    yield Pair(upstream, mirror, root, secret)
    for server in (mirror, upstream):  # a test that failed leaves both
        if server.process is not None and server.process.poll() is None:
            server.stop()


@pytest.fixture
def relay(pair: Pair) -> Iterator[LyingRelay]:
    """Between the mirror and the registry. The mirror runs as long as the relay does."""
    with lying_relay(pair.upstream.url) as between:
        pair.mirror.env["CACHESVC_SERVER_UPSTREAM_URL"] = between.url
        with pair.mirror.running():
            yield between


def publish(pair: Pair, **more: Any) -> Publication:
    made = make(
        more.pop("key", pair.upstream.key),
        name="model",
        path="aa/c" + 24 * "a" + ".picked_kernel",
        fingerprint=dict(detect()),
        **more,
    )
    return made


def offered(api: Api) -> list[str]:
    return resolved(api, name="model", fingerprint=dict(detect()))


def mirrored(pair: Pair, **more: Any) -> tuple[Publication, Api]:
    """Publish a revision, and wait until the mirror offers it. Return it with a reader of the mirror."""
    made = publish(pair, **more)
    ok(pair.upstream.api().publish(made))
    reader = pair.reader()
    eventually(lambda: offered(reader) == [made.revision], "the head")
    return made, reader


def attach(pair: Pair, reader: Api, place: Path, **variables: str) -> dict[str, Any]:
    """What a service says of its start from the mirror, with the registry's root pinned."""
    place.mkdir(exist_ok=True)
    secret = reader.http.headers["authorization"].removeprefix("Bearer ")
    told = {"CACHESVC_URL": pair.mirror.url, "CACHESVC_TOKEN": secret, "CACHESVC_TRUST_ROOT": str(pair.root)}
    return start("attached.py", json.dumps({"name": NAME}), place=place, **QUICK, **told, **variables)


# An upstream that lies to the mirror.


def test_an_upstream_that_sends_other_bytes_of_a_pack_fills_no_store(
    pair: Pair, relay: LyingRelay, tmp_path: Path
) -> None:
    made, reader = mirrored(pair)
    lies = bytearray(made.pack)
    lies[len(lies) // 2] ^= 1
    relay.alter = lambda _method, path, _body: (200, bytes(lies)) if path.endswith("/pack") else None
    refused(reader.pack(made.revision), 503, "unavailable", "other bytes")
    refused(reader.pack(made.revision), 503, "unavailable")  # and it is not kept for the next reader
    assert list((pair.mirror.data / "blobs" / "objects" / "packs").glob("*")) == []
    relay.alter = lambda *_: None
    assert attach(pair, reader, tmp_path / "node")["installed"] == [made.revision]


def test_an_upstream_sends_a_mirror_to_no_address_inside(pair: Pair, relay: LyingRelay) -> None:
    """The mirror asks for packs from its own network, and shows nobody's token elsewhere."""
    made, reader = mirrored(pair)
    for place in ("http://169.254.169.254/latest", "http://[64:ff9b:1::a9fe:a9fe]/", "file:///etc/passwd"):
        relay.moved = {"/pack": place}
        answer = reader.pack(made.revision)
        refused(answer, 503, "unavailable", "leads elsewhere")
        assert not any(word in answer.text for word in ("169.254", "a9fe", "ALLOW_LINKS", relay.url)), answer
    relay.moved = {}
    assert reader.pack(made.revision).content == made.pack


def test_an_upstream_that_shows_what_a_stranger_signed_is_not_mirrored(pair: Pair, relay: LyingRelay) -> None:
    made, reader = mirrored(pair)
    forged = make(
        SigningKey.generate(), name="model", fingerprint=dict(detect()), target="other", content=b"forged"
    )
    row = {
        "entry": forged.manifest.entry,
        "revision": forged.revision,
        "sequence": forged.manifest.statement.sequence,
        "published": int(time.time()),
    }

    def alter(_method: str, path: str, _body: bytes) -> tuple[int, bytes] | None:
        if path.startswith("/v1/heads"):
            rows = [row, {**row, "entry": made.manifest.entry, "revision": made.revision}]
            rows[1]["sequence"] = made.manifest.statement.sequence
            rows.sort(key=lambda one: str(one["entry"]))
            return 200, json.dumps({"mark": "0" * 64, "heads": rows}).encode()
        if path.endswith("/envelope") and forged.revision in path:
            return 200, forged.envelope
        return None

    relay.alter = alter
    eventually(lambda: metric(pair.mirror, "cachesvc_mirror_behind_revisions") == 1, "the refusal")
    assert offered(reader) == [made.revision]


def test_an_upstream_that_shows_an_older_head_rolls_no_mirror_back(pair: Pair, relay: LyingRelay) -> None:
    first, reader = mirrored(pair)
    listing = pair.upstream.api().http.get("/v1/heads").content
    envelope = pair.upstream.api().http.get(f"/v1/revisions/{first.revision}/envelope").content
    second = publish(pair, content=b"newer")
    ok(pair.upstream.api().publish(second, first.revision))
    eventually(lambda: offered(reader) == [second.revision], "the new head")

    def alter(_method: str, path: str, _body: bytes) -> tuple[int, bytes] | None:
        if path.startswith("/v1/heads"):
            return 200, listing
        return (200, envelope) if path.endswith("/envelope") else None

    relay.alter = alter
    eventually(lambda: metric(pair.mirror, "cachesvc_mirror_behind_revisions") == 1, "the refusal")
    assert offered(reader) == [second.revision]


def test_an_upstream_with_another_root_changes_nothing(pair: Pair, relay: LyingRelay, tmp_path: Path) -> None:
    """Somebody has the network between both, and a registry of their own."""
    made, reader = mirrored(pair)
    (tmp_path / "attacker").mkdir()
    with Server(tmp_path / "attacker" / "data").running() as attacker:
        theirs = publish(pair, key=attacker.key, content=b"theirs")
        ok(attacker.api().publish(theirs))
        body = {"label": "x", "role": "read", "namespace": "*", "days": 1}
        theirs_token = ok(attacker.api().http.post("/v1/tokens", json=body))["secret"]
        api = attacker.api(theirs_token)

        def alter(_method: str, path: str, _body: bytes) -> tuple[int, bytes] | None:
            answer = api.http.get(path)
            return answer.status_code, answer.content

        relay.alter = alter
        eventually(lambda: metric(pair.mirror, "cachesvc_mirror_lag_seconds") >= 3, "the lag")
        stats = ok(pair.mirror.api().http.get("/v1/stats"))["mirror"]
        assert "keys that root 1 names" in stats["why"], stats
        relay.alter = lambda *_: None
    assert offered(reader) == [made.revision]


def test_an_upstream_that_shows_older_trust_metadata_changes_nothing(pair: Pair, relay: LyingRelay) -> None:
    made, reader = mirrored(pair)
    old = pair.upstream.api().http.get("/v1/trust/update").content
    key = SigningKey.generate()
    ok(pair.upstream.api().http.post("/v1/signers", json={"namespace": "team", "key": key.public}))
    newer = publish(pair, key=key, target="second")
    ok(pair.upstream.api().publish(newer))
    eventually(lambda: newer.revision in offered(reader), "the second signer's head")
    relay.alter = lambda _m, path, _body: (200, old) if path.startswith("/v1/trust/update") else None
    eventually(lambda: metric(pair.mirror, "cachesvc_mirror_lag_seconds") >= 3, "the lag")
    stats = ok(pair.mirror.api().http.get("/v1/stats"))["mirror"]
    assert "has seen version" in stats["why"], stats
    assert set(offered(reader)) == {made.revision, newer.revision}


@pytest.mark.parametrize("kind", ["unordered", "endless", "numbers", "no page"])
def test_an_upstream_whose_listing_is_none_stops_no_mirror(pair: Pair, relay: LyingRelay, kind: str) -> None:
    made, reader = mirrored(pair)
    row = {"entry": made.manifest.entry, "revision": made.revision, "sequence": 1, "published": 1}
    low = {**row, "entry": "sha256:" + 64 * "0"}
    pages = {
        "unordered": {"mark": "", "heads": [row, low]},
        "endless": {"mark": "", "heads": [low], "next": low["entry"]},
        "numbers": {"mark": "", "heads": [{**row, "published": 1 << 70}]},
        "no page": [],
    }
    lie = json.dumps(pages[kind]).encode()
    relay.alter = lambda _m, path, _body: (200, lie) if path.startswith("/v1/heads") else None
    eventually(lambda: metric(pair.mirror, "cachesvc_mirror_lag_seconds") >= 3, "the lag")
    relay.alter = lambda *_: None
    eventually(lambda: metric(pair.mirror, "cachesvc_mirror_lag_seconds") <= 1, "a look")
    # The lie about a first page may have removed the head: the truth brings it back.
    eventually(lambda: offered(reader) == [made.revision], "the head")


@pytest.mark.usefixtures("relay")
def test_an_upstream_that_was_taken_over_administers_no_mirror(pair: Pair) -> None:
    made, _ = mirrored(pair)
    admin = pair.mirror.api(pair.token("admin", "*")["secret"])
    assert ok(admin.http.get("/v1/whoami"))["role"] == "write"
    refused(admin.http.get("/v1/tokens"), 403, "forbidden")
    refused(admin.http.post("/v1/gc"), 403, "forbidden")
    assert offered(admin) == [made.revision]


# A mirror that lies to its clients.


def test_a_mirror_whose_store_was_changed_installs_nothing(pair: Pair, tmp_path: Path) -> None:
    with pair.mirror.running():
        made, reader = mirrored(pair)
        assert reader.pack(made.revision).content == made.pack
        [path] = (pair.mirror.data / "blobs" / "objects" / "packs").iterdir()
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        seen = attach(pair, reader, tmp_path / "node")
        assert seen["installed"] == [], seen
        assert any(seen["problems"]), seen


def _forge(pair: Pair, made: Publication, forged: Publication) -> None:
    """Put what a stranger signed into the index of a mirror, in the place of a head."""
    with sqlite3.connect(pair.mirror.data / "index.sqlite3", timeout=30) as index:
        index.execute("PRAGMA foreign_keys = OFF")
        index.execute(
            "UPDATE revisions SET revision = ?, envelope = ? WHERE revision = ?",
            (forged.revision, forged.envelope, made.revision),
        )
        index.execute("UPDATE entries SET head = ? WHERE head = ?", (forged.revision, made.revision))
    index.close()


def test_a_mirror_that_shows_what_a_stranger_signed_is_refused(pair: Pair, tmp_path: Path) -> None:
    with pair.mirror.running():
        made, reader = mirrored(pair)
        stranger = publish(pair, key=SigningKey.generate())
        secret = reader.http.headers["authorization"].removeprefix("Bearer ")
        assert pair.upstream.process is not None
        pair.upstream.kill()  # nothing repairs the index meanwhile
        _forge(pair, made, stranger)
        eventually(lambda: offered(reader) == [stranger.revision], "the lie")
        seen = attach(pair, reader, tmp_path / "node")
        assert seen["installed"] == [], seen
        assert "signed by" in " ".join(seen["problems"]), seen
        pair.upstream.options = ["--port", pair.upstream.url.rpartition(":")[2]]
        pair.upstream.start()
        # A start verifies what the index holds.
        pair.mirror.kill()
        pair.mirror.start()
        again = pair.mirror.api(secret)
        eventually(lambda: offered(again) == [made.revision], "the repair")


def test_a_mirror_that_shows_older_trust_metadata_is_refused(pair: Pair, tmp_path: Path) -> None:
    with pair.mirror.running():
        _, reader = mirrored(pair)
        secret = reader.http.headers["authorization"].removeprefix("Bearer ")
        remote, store = Remote(pair.mirror.url, secret), tmp_path / "store"
        with sqlite3.connect(pair.mirror.data / "index.sqlite3", timeout=30) as index:
            rows = index.execute("SELECT * FROM trust_files").fetchall()
        key = SigningKey.generate()
        ok(pair.upstream.api().http.post("/v1/signers", json={"namespace": "team", "key": key.public}))
        eventually(lambda: key.public in refresh_policy(pair.root, store, remote)[0].keys, "the signer")
        pair.upstream.kill()
        with index:
            index.execute("DELETE FROM trust_files")
            index.executemany("INSERT INTO trust_files VALUES (?, ?, ?, ?, ?)", rows)
        index.close()
        with pytest.raises(Untrusted, match="has seen version"):
            refresh_policy(pair.root, store, remote)
        remote.close()
        pair.upstream.start()


MIXES = [("targets",), ("snapshot",), ("targets", "snapshot"), ("timestamp",), ("timestamp", "targets")]
"""Roles whose files are those of the moment before the revocation."""


def test_a_mirror_that_mixes_trust_metadata_of_two_moments_is_refused(pair: Pair, tmp_path: Path) -> None:
    """Also by a node that saw neither: each mix would have a revoked signer count."""
    with pair.mirror.running():
        key, node = SigningKey.generate(), tmp_path / "seen"
        ok(pair.upstream.api().http.post("/v1/signers", json={"namespace": "team", "key": key.public}))
        _, reader = mirrored(pair, key=key)
        secret = reader.http.headers["authorization"].removeprefix("Bearer ")
        remote = Remote(pair.mirror.url, secret, retries=0)
        index = sqlite3.connect(pair.mirror.data / "index.sqlite3", timeout=30)
        old = trust_rows(index)
        revoked = {"namespace": "team", "key": key.public, "why": "leaked"}
        ok(pair.upstream.api().http.post("/v1/revocations", json=revoked))
        eventually(lambda: trust_rows(index)["targets"] != old["targets"], "the revocation")
        refresh_policy(pair.root, node, remote)
        pair.upstream.kill()
        new = trust_rows(index)
        for number, roles in enumerate(MIXES):
            for under_new_version in (False, True):
                write_trust(index, old, new, roles, under_new_version)
                for store in (node, tmp_path / f"fresh-{number}-{under_new_version}"):
                    with pytest.raises(CacheSvcError):
                        policy, _ = refresh_policy(pair.root, store, remote)
                        policy.check(publish(pair).manifest.statement, [key.public])
        write_trust(index, old, new, (), False)
        assert refresh_policy(pair.root, tmp_path / "honest", remote)[1] == ""
        index.close()
        remote.close()
        pair.upstream.start()


Rows = dict[str, tuple[int, int, bytes]]


def trust_rows(index: sqlite3.Connection) -> Rows:
    """Return version, expiry and bytes of the newest file of each online role and of the targets."""
    query = "SELECT role, version, expires, data FROM trust_files WHERE role != 'root' ORDER BY version"
    return {role: (version, expires, data) for role, version, expires, data in index.execute(query)}


def write_trust(
    index: sqlite3.Connection, old: Rows, new: Rows, roles: tuple[str, ...], under_new_version: bool
) -> None:
    """Write the old files of ``roles`` and the new ones of the others; or old bytes as the new version."""
    with index:
        index.execute("DELETE FROM trust_files WHERE role != 'root'")
        for role in new:
            version, expires, data = old[role] if role in roles else new[role]
            version = new[role][0] if under_new_version else version
            index.execute(
                "INSERT INTO trust_files (role, version, expires, data, created) VALUES (?, ?, ?, ?, 1)",
                (role, version, expires, data),
            )


def test_a_mirror_that_answers_with_another_namespace_s_revision_is_refused(
    pair: Pair, tmp_path: Path
) -> None:
    """And with what a signer of another namespace signed for this one."""
    with pair.mirror.running(), lying_relay(pair.mirror.url) as relay:
        key = SigningKey.generate()
        ok(pair.upstream.api().http.post("/v1/signers", json={"namespace": "other", "key": key.public}))
        _, reader = mirrored(pair)
        theirs = publish(pair, key=key, namespace="other", content=b"theirs")
        forged = publish(pair, key=key, content=b"signed for a namespace of others")
        ok(pair.upstream.api().publish(theirs))
        shown = [theirs]

        def alter(_method: str, path: str, body: bytes) -> tuple[int, bytes] | None:
            if not path.startswith("/v1/resolve"):
                return None
            answer = json.loads(body)
            answer["revisions"][0] |= {"revision": shown[0].revision, "envelope": shown[0].envelope.decode()}
            return 200, json.dumps(answer).encode()

        pair.mirror.ready["url"] = relay.url
        relay.alter = alter
        for shown[0], words in ((theirs, "wanted"), (forged, "demands")):
            seen = attach(pair, reader, tmp_path / f"node-{words}")
            assert seen["installed"] == [] and words in " ".join(seen["problems"]), seen


def test_a_mirror_gives_nothing_from_its_store_that_the_registry_withdrew(pair: Pair) -> None:
    """The pack is in its store. It stays withheld when the mirror starts anew and the registry is gone."""
    with pair.mirror.running():
        made, reader = mirrored(pair)
        assert reader.pack(made.revision).content == made.pack
        path = f"/v1/revisions/{made.revision}/quarantine"
        ok(pair.upstream.api().http.put(path, json={"why": "it is wrong"}))
        eventually(lambda: offered(reader) == [], "the quarantine")
        refused(reader.pack(made.revision), 404, "not_found", "it is wrong")
        pair.upstream.kill()
        pair.mirror.kill()
        pair.mirror.start()
        again = pair.mirror.api(reader.http.headers["authorization"].removeprefix("Bearer "))
        refused(again.pack(made.revision), 404, "not_found", "it is wrong")
        assert offered(again) == []
        pair.upstream.start()


def test_a_mirror_that_stands_still_is_refused_once_its_metadata_expire(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair.mirror.running():
        _, reader = mirrored(pair)
        secret = reader.http.headers["authorization"].removeprefix("Bearer ")
        pair.upstream.kill()
        with Remote(pair.mirror.url, secret) as remote:
            assert refresh_policy(pair.root, tmp_path / "store", remote)[0].keys
            now = time.time()
            monkeypatch.setattr(time, "time", lambda: now + 8 * 86_400)
            with pytest.raises(Untrusted, match="expired"):
                refresh_policy(pair.root, tmp_path / "store", remote)
            monkeypatch.undo()
        pair.upstream.start()


def test_a_client_s_token_goes_to_the_upstream_and_a_mirror_keeps_none(pair: Pair, relay: LyingRelay) -> None:
    made, reader = mirrored(pair)
    secret = reader.http.headers["authorization"].removeprefix("Bearer ")
    assert reader.pack(made.revision).content == made.pack
    assert relay.secrets <= {pair.secret, secret}
    assert relay.seen[f"GET /v1/revisions/{made.revision}/pack"] == 1
    assert bytes_out(pair.upstream) == len(made.pack)
    for path in pair.mirror.data.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_a_lane_whose_claims_wait_leaves_places_of_a_mirror_to_others(pair: Pair) -> None:
    """A mirror passed on 128 claims at once that wait, whoever's they were: the others waited for these."""
    token = pair.token("write", lane="pr-1")
    subject = {"namespace": "team", "name": "bert", "environment": Digest.of(b"here")}

    def ask(api: Api, holder: int, **more: Any) -> Any:
        claim = {"subject": {**subject, **more}, "holder": f"{holder:032x}"}
        return api.http.post("/v1/claims", json={**claim, "wait": 12 if holder < 200 else 1}, timeout=9)

    ok(ask(pair.upstream.api(token["secret"]), 999, lane="pr-1"))
    ok(ask(pair.upstream.api(), 999))
    with pair.mirror.running(), ThreadPoolExecutor(160) as pool:
        honest = pair.reader("write")
        lanes = [pair.mirror.api(token["secret"]) for _ in range(4)]  # each has a hundred connections
        for number in range(160):
            pool.submit(ask, lanes[number % 4], number, lane="pr-1")
        time.sleep(4)
        began = time.monotonic()
        assert ok(ask(honest, 500))["state"] == "held"
        assert time.monotonic() - began < 5


def test_a_client_whose_calls_take_long_makes_no_mirror_say_that_the_registry_is_silent(
    pair: Pair, relay: LyingRelay
) -> None:
    """Claims that wait, and calls whose answer is kept back: others are served, and a revoked token ends."""

    def keep_back(_method: str, path: str, _body: bytes) -> None:
        time.sleep(14 if path == "/v1/claims/renew" else 0)

    relay.alter = keep_back
    token = pair.token("write")
    waiter, ended = pair.reader("write"), pair.mirror.api(token["secret"])
    waiter.http.timeout = 60
    subject = {"namespace": "team", "name": "bert", "environment": Digest.of(b"here")}
    claim = {"subject": subject, "holder": 32 * "a"}
    taken = ok(ended.http.post("/v1/claims", json=claim))
    renewal = {name: taken[name] for name in ("key", "fence")} | {"holder": claim["holder"]}
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        waits = [
            pool.submit(waiter.http.post, "/v1/claims", json={**claim, "holder": f"{n:032x}", "wait": 12})
            for n in range(4)
        ]
        kept = [pool.submit(waiter.http.post, "/v1/claims/renew", json=renewal) for _ in range(4)]
        time.sleep(10.5)
        for _ in range(10):  # a token that the mirror has not seen yet: it has to ask
            ok(pair.reader("write").http.get("/v1/whoami"))
        ok(pair.upstream.api().http.delete(f"/v1/tokens/{token['token']}"))
        eventually(lambda: ended.http.get("/v1/whoami").status_code == 401, "the end of the token")
        assert time.monotonic() - began < 30
        assert {ok(one.result())["state"] for one in waits} == {"held"}
        assert time.monotonic() - began >= 12
        assert {one.result().status_code for one in kept} == {503}
