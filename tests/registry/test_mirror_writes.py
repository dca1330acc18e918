"""Tokens of the registry at its mirror, and what a mirror sends on: publications and claims."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_command import Admin
from mirroring import Pair, bytes_out, eventually, metric, resolved, running_pair
from registry_making import FINGERPRINT, Api, Publication, make, ok, refused

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest

HOLDER, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    # The mirror looks once at its start, and after each publication through it.
    with running_pair(tmp_path, upstream_seconds="300") as started:
        yield started


def subject() -> dict[str, str]:
    return {"namespace": "team", "name": "bert", "environment": Digest.of(b"here")}


def test_a_publication_through_the_mirror_is_the_upstream_s_and_is_offered_here(pair: Pair) -> None:
    writer = pair.reader("write")
    made = make(pair.upstream.key)
    assert ok(writer.bundle(made))["created"] is True
    assert resolved(pair.upstream.api()) == [made.revision]
    eventually(lambda: resolved(writer) == [made.revision], "the look after the publication")
    assert writer.pack(made.revision).content == made.pack
    second = make(pair.upstream.key, content=b"second")
    refused(writer.publish(second), 409, "head_conflict")
    assert ok(writer.publish(second, made.revision))["created"] is True
    eventually(lambda: resolved(writer) == [second.revision], "the look after the publication")
    assert len(resolved(pair.upstream.api())) == 1


def test_the_upstream_decides_about_a_publication(pair: Pair) -> None:
    stranger = make(SigningKey.generate())
    text = refused(pair.reader("write").bundle(stranger), 403, "untrusted")
    assert "cachesvc admin signers add" in text
    refused(pair.reader("read").bundle(make(pair.upstream.key)), 403, "forbidden")
    of_lane = pair.mirror.api(pair.token("write", lane="pr-1")["secret"])
    refused(of_lane.bundle(make(pair.upstream.key)), 403, "forbidden")
    in_lane = make(pair.upstream.key, lane="pr-1")
    assert ok(of_lane.bundle(in_lane))["created"] is True
    # A token of the mirror itself is none of the upstream's.
    refused(pair.mirror.api().bundle(make(pair.upstream.key)), 401, "unauthenticated")


def test_a_pack_of_many_chunks_passes(pair: Pair) -> None:
    made = make(pair.upstream.key, content=os.urandom(9_000_000))
    writer = pair.reader("write")
    assert ok(writer.publish(made))["created"] is True
    assert pair.upstream.api().pack(made.revision).content == made.pack


def test_one_claim_for_clients_of_the_mirror_and_of_the_upstream(pair: Pair) -> None:
    here, there = pair.reader("write"), pair.upstream.api(pair.token("write")["secret"])
    taken = ok(here.http.post("/v1/claims", json={"subject": subject(), "holder": HOLDER}))
    waits = ok(there.http.post("/v1/claims", json={"subject": subject(), "holder": OTHER}))
    assert (taken["state"], waits["state"]) == ("yours", "held")
    claim = {"key": taken["key"], "holder": HOLDER, "fence": taken["fence"]}
    assert ok(here.http.post("/v1/claims/renew", json=claim))["fence"] == taken["fence"]
    assert here.http.post("/v1/claims/release", json={"claim": claim}).status_code == 204
    taken = ok(there.http.post("/v1/claims", json={"subject": subject(), "holder": OTHER}))
    assert taken["state"] == "yours"
    refused(here.http.post("/v1/claims/renew", json=claim), 409, "claim_lost")


def write_without_upstream(writer: Api, made: Publication) -> None:
    for answer in (
        writer.bundle(made),
        writer.begin(made),
        writer.http.post("/v1/claims", json={"subject": subject(), "holder": HOLDER}),
    ):
        refused(answer, 503, "unavailable", "does not answer")


def test_without_the_upstream_writes_are_refused_and_reads_and_reports_go_on(pair: Pair) -> None:
    writer, reporter = pair.reader("write"), pair.reader("report")
    made = make(pair.upstream.key)
    ok(writer.bundle(made))
    eventually(lambda: resolved(writer) == [made.revision], "the head")
    assert writer.pack(made.revision).content == made.pack
    assert ok(reporter.http.get("/v1/whoami"))["role"] == "report"
    pair.upstream.kill()
    write_without_upstream(writer, make(pair.upstream.key, target="other"))
    assert resolved(writer) == [made.revision]
    report = {
        "node": HOLDER,
        "fingerprint": FINGERPRINT,
        "revisions": [{"revision": made.revision, "state": "hit"}],
    }
    ok(reporter.http.post("/v1/reports", json=report))
    stats = ok(pair.mirror.api().http.get("/v1/stats"))
    assert stats["starts"]["hit"] == 1


def test_a_revoked_token_counts_no_more_within_seconds(pair: Pair) -> None:
    token = pair.token("read")
    reader = pair.mirror.api(token["secret"])
    assert ok(reader.http.get("/v1/whoami"))["token"] == token["token"]
    ok(pair.upstream.api().http.delete(f"/v1/tokens/{token['token']}"))
    eventually(lambda: reader.http.get("/v1/whoami").status_code == 401, "the revocation")
    pair.upstream.kill()
    # The mirror has forgotten it: an outage does not bring it back.
    refused(reader.http.get("/v1/whoami"), 401, "unauthenticated")
    time.sleep(6)
    refused(reader.http.get("/v1/whoami"), 503, "unavailable")


def test_a_token_that_the_upstream_never_confirmed_waits_for_it(pair: Pair) -> None:
    token = pair.token("read")["secret"]
    pair.upstream.kill()
    refused(pair.mirror.api(token).http.get("/v1/whoami"), 503, "unavailable", "cannot be checked")
    refused(pair.mirror.api("no token").http.get("/v1/whoami"), 401, "unauthenticated")
    assert ok(pair.mirror.api().http.get("/v1/whoami"))["role"] == "admin"  # the mirror's own


def test_a_confirmed_token_counts_for_a_bounded_time_without_the_upstream(tmp_path: Path) -> None:
    with running_pair(tmp_path, upstream_offline_seconds="0") as pair:
        reader = pair.reader()
        ok(reader.http.get("/v1/whoami"))
        pair.upstream.kill()
        eventually(lambda: reader.http.get("/v1/whoami").status_code == 503, "the end of the bounded time")


def test_an_answer_that_another_version_kept_does_not_count_without_the_upstream(pair: Pair) -> None:
    token = pair.token("read")["secret"]
    ok(pair.mirror.api(token).http.get("/v1/whoami"))
    assert pair.mirror.stop() == 0
    with contextlib.closing(sqlite3.connect(pair.mirror.data / "index.sqlite3")) as index, index:
        index.execute("UPDATE upstream_tokens SET token = json_remove(token, '$.life')")
    pair.mirror.start()
    pair.upstream.kill()
    refused(pair.mirror.api(token).http.get("/v1/whoami"), 503, "unavailable", "cannot be checked")


def test_the_lag_is_shown(tmp_path: Path, command: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_pair(tmp_path) as pair:
        ok(pair.upstream.api().publish(make(pair.upstream.key)))
        reader = pair.reader()
        eventually(lambda: resolved(reader), "the head")
        assert metric(pair.mirror, "cachesvc_mirror_behind_revisions") == 0
        mirror = ok(pair.mirror.api().http.get("/v1/stats"))["mirror"]
        assert (mirror["upstream"], mirror["behind"], mirror["packs"]) == (pair.upstream.url, 0, 0)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setenv("CACHESVC_URL", pair.mirror.url)
        monkeypatch.setenv("CACHESVC_TOKEN", pair.mirror.token)
        shown = command("admin", "stats").out
        assert pair.upstream.url in shown and "last look" in shown and "packs here" in shown, shown
        as_json = command("admin", "stats", "--json").json["mirror"]
        assert as_json["lag_seconds"] >= 0 and as_json["behind"] == 0
        backup = command("admin", "--local", "--data", pair.mirror.data, "backup", tmp_path / "copy")
        assert backup.status == 2 and "an empty mirror fills itself" in backup.err, backup
        assert "mirror" not in ok(pair.upstream.api().http.get("/v1/stats"))
        pair.upstream.kill()
        eventually(lambda: metric(pair.mirror, "cachesvc_mirror_lag_seconds") >= 4, "the lag")
        mirror = ok(pair.mirror.api().http.get("/v1/stats"))["mirror"]
        assert mirror["lag"] >= 4 and mirror["why"], mirror
        pair.mirror.kill()
        pair.mirror.start()
        # The last look is known after a restart too.
        assert metric(pair.mirror, "cachesvc_mirror_lag_seconds") >= 4
        assert bytes_out(pair.mirror) == 0
