"""Test ``cachesvc admin`` as an operator types it, against a server of its own and against the server's
database."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tarfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from admin_command import Admin
from registry_inside import production
from registry_making import FINGERPRINT, Publication, Server, make, ok, refused

from cachesvc.blobs import testing
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Workload
from tests.services.ceph import Gateway

INPUTS = {"base": {"args": [{"dtype": "bfloat16", "shape": [8, 128], "device": "cuda"}], "kwargs": {}}}


def seconds_between(first: str, second: str) -> float:
    """Return the seconds between two times of an answer in JSON."""
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


def publish(
    server: Server, key: SigningKey, namespace: str, head: Publication | None = None, **more: Any
) -> Publication:
    publication = make(key, namespace=namespace, **more)
    ok(server.api().publish(publication, head.revision if head else None))
    return publication


def test_tokens_are_made_listed_shortened_and_revoked(admin: Admin, server: Server, team: str) -> None:
    creation = admin(
        "tokens", "create", "--label", "ci", "--role", "write", "-n", team, "--days", 90, "--json"
    )
    token, secret = creation.json["token"], creation.json["secret"]
    assert secret.startswith("csv_")
    assert ok(server.api(secret).http.get("/v1/whoami"))["role"] == "write"
    listing = admin("tokens", "list")
    assert secret not in listing.out
    assert any(token in line and "write" in line and team in line for line in listing.out.splitlines())
    row = admin("tokens", "expire", token, "--days", 1, "--apply", "--json").rows[0]
    assert seconds_between(row["created"], row["expires"]) <= 86_400 + 60
    plan = admin("tokens", "revoke", token)
    assert plan.status == 0 and "would revoke" in plan.out and "--apply" in plan.err
    assert server.api(secret).http.get("/v1/whoami").status_code == 200
    assert admin("tokens", "revoke", token, "--apply").status == 0
    refused(server.api(secret).http.get("/v1/whoami"), 401, "unauthenticated")
    assert token not in admin("tokens", "list").out
    assert "revoked" in admin("tokens", "list", "--all").out
    again = admin("tokens", "expire", token, "--days", 5)
    assert again.status == 2 and "was revoked" in again.err


def test_a_token_needs_an_expiry_and_a_namespace_or_an_explicit_choice(admin: Admin, team: str) -> None:
    """An omitted option means neither "for ever" nor "everywhere", and a refusal changes nothing."""
    before = {row["token"]: row.get("expires") for row in admin("tokens", "list", "--json").rows}
    nowhere = admin("tokens", "create", "--label", "ci", "--role", "write")
    assert nowhere.status == 2 and nowhere.err.count("\n") == 1 and "-n '*'" in nowhere.err
    both = admin("tokens", "create", "--label", "ci", "-n", team, "--days", 3, "--never")
    assert both.status == 2 and "--never" in both.err
    assert {row["token"]: row.get("expires") for row in admin("tokens", "list", "--json").rows} == before

    plain = admin("tokens", "create", "--label", "ci", "-n", team)
    assert re.search(r"expires\s+20\d\d-", plain.out)
    assert plain.err == "it expires in 90 days; --days N or --never says otherwise\n"
    typo = admin("tokens", "create", "--label", "ci", "-n", team, "--role", "wrte")
    assert typo.status == 2 and "did you mean write? one of: read, report, write, admin" in typo.err
    creation = admin("tokens", "create", "--label", "ci", "-n", "*", "--json").json
    assert (
        creation["namespace"] == "*"
        and seconds_between(creation["created"], creation["expires"]) == 90 * 86_400
    )
    forever = admin("tokens", "create", "--label", "ci", "-n", team, "--never")
    assert re.search(r"expires\s+never", forever.out)

    token = creation["token"]
    for options in (
        (),
        ("--days", 1, "--never"),
        ("--now", "--never"),
        ("--now", "--days", 1),
        ("--days", 0),
    ):
        unclear = admin("tokens", "expire", token, *options)
        assert unclear.status == 2 and unclear.err.count("\n") == 1 and "--now" in unclear.err
    [row] = [row for row in admin("tokens", "list", "--json").rows if row["token"] == token]
    assert row["expires"] == creation["expires"]
    assert admin("tokens", "expire", token, "--never", "--apply", "--json").rows[0]["expires"] is None
    assert admin("tokens", "expire", token, "--now", "--apply").status == 0


def test_what_takes_something_from_a_user_is_a_plan_until_it_is_applied(
    admin: Admin, server: Server, key: SigningKey, team: str
) -> None:
    made = admin("tokens", "create", "--label", "ci", "-n", team, "--json").json
    revision = publish(server, key, team).revision
    for words, would in (
        (("tokens", "rotate", made["token"], "--overlap", 0), "would end the secret of "),
        (("quarantine", "set", revision, "--why", "wrong"), "would withhold "),
        (("tokens", "expire", made["token"], "--now"), "would end "),
    ):
        plan = admin(*words)
        assert (plan.status, plan.err) == (0, "nothing was changed; --apply does it\n"), plan
        assert plan.out.splitlines()[-1].startswith(would), plan
        assert server.api(made["secret"]).http.get("/v1/whoami").status_code == 200
        assert ok(server.api().resolve(team))["revisions"], "a plan withholds nothing"
    rotation = admin("tokens", "rotate", made["token"], "--overlap", 0, "--apply", "--json").rows[0]
    refused(server.api(made["secret"]).http.get("/v1/whoami"), 401, "unauthenticated")
    deed = admin("quarantine", "set", revision, "--why", "wrong", "--apply")
    assert deed.out.splitlines()[-1].startswith("withheld ") and not deed.err, deed
    assert ok(server.api().resolve(team))["revisions"] == []
    assert admin("tokens", "expire", made["token"], "--now", "--apply").status == 0
    refused(server.api(rotation["secret"]).http.get("/v1/whoami"), 401, "unauthenticated")


def test_the_role_for_services_is_a_role(admin: Admin, team: str) -> None:
    assert admin("tokens", "create", "--label", "pods", "--role", "report", "-n", team, "--json").json[
        "role"
    ] == ("report")
    wrong = admin("tokens", "create", "--label", "x", "--role", "root", "-n", team)
    assert wrong.status == 2 and "one of: read, report, write, admin" in wrong.err


def test_signers_are_added_and_removed(admin: Admin, server: Server, team: str) -> None:
    other = SigningKey.generate()
    refused(server.api().publish(make(other, namespace=team)), 403, "untrusted")
    assert admin("signers", "add", other.public, "-n", team, "--label", "theirs").status == 0
    publication = publish(server, other, team)
    assert "theirs" in admin("namespaces", "show", team).out
    plan = admin("signers", "remove", other.public, "-n", team)
    assert plan.status == 0 and "would remove" in plan.out
    assert admin("signers", "remove", other.public, "-n", team, "--apply").status == 0
    refused(server.api().publish(make(other, namespace=team), publication.revision), 403, "untrusted")
    removal = admin("signers", "remove", other.public, "-n", team, "--apply")
    assert removal.status == 4 and "is no signer" in removal.err


def test_a_token_is_rotated_and_the_times_are_shown(admin: Admin, server: Server, team: str) -> None:
    creation = admin("tokens", "create", "--label", "ci", "-n", team, "--never", "--json").json
    token, first = creation["token"], creation["secret"]
    shown = admin("tokens", "rotate", token, "--overlap", 2, "--apply")
    assert shown.status == 0, shown.err
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in shown.out.splitlines())
    assert facts["token"] == token and facts["expires"] == "never"
    assert re.fullmatch(r"valid until \d{4}-\d\d-\d\d \d\d:\d\d UTC", facts["the secret before"])
    second = facts["secret"]
    assert second not in (first, "") and first not in shown.out
    for secret in (first, second):
        assert ok(server.api(secret).http.get("/v1/whoami"))["token"] == token
    third = admin("tokens", "rotate", token, "--overlap", 0, "--apply", "--json").rows[0]
    assert third["previous_until"] is not None and third["secret"] not in (first, second)
    for secret in (first, second):
        assert server.api(secret).http.get("/v1/whoami").status_code == 401
    assert admin("tokens", "rotate", token, "--overlap", 721).status == 2
    assert admin("tokens", "rotate", "t-nope").status == 4


def mistyped(key: PublicKey) -> PublicKey:
    """Return another key, which differs in one character."""
    for character in "abcdefgh":
        with contextlib.suppress(ValueError):
            if (other := PublicKey(f"{key[:20]}{character}{key[21:]}")) != key:
                return other
    raise AssertionError(key)


def test_a_key_is_named_by_its_beginning_or_its_id(admin: Admin, team: str) -> None:
    keys = [SigningKey.generate().public for _ in range(4)]
    for key in keys:
        assert admin("signers", "add", key, "-n", team).status == 0
    words = (keys[0][:16], keys[1][8:20], keys[2].keyid, keys[3].short)
    for key, text in zip(keys, words, strict=True):
        plan = admin("signers", "remove", text, "-n", team)
        assert plan.status == 0 and key.short in plan.out, plan.err
        assert admin("signers", "revoke", text, "-n", team, "--json").json["revocation"]["key"] == key
    for text, status, part in (
        ("ed25519:", 2, "4 or more"),
        ("abc", 2, "4 or more"),
        ("ed25519:????", 4, "signers list"),
        (f"{keys[0][:20]}?{keys[0][21:30]}", 4, f"did you mean {keys[0].short}?"),
        (f"{keys[2].keyid[:9]}?{keys[2].keyid[10:]}", 4, f"did you mean {keys[2].short}?"),
        (mistyped(keys[0]), 4, f"did you mean {keys[0].short}?"),
        ("ed2551", 2, "keys begin with"),
    ):
        result = admin("signers", "remove", text, "-n", team, "--apply")
        assert (result.status, part in result.err) == (status, True), (text, result)
    assert len(admin("signers", "list", "--json").rows) > len(keys)


def test_a_namespace_has_a_retention_policy(admin: Admin, server: Server, key: SigningKey, team: str) -> None:
    first = publish(server, key, team)
    size = len(first.pack)
    bounds = ("keep_revisions", "keep_days", "unused_days", "keep_bytes", "quota_bytes")
    defaults = dict.fromkeys(bounds, "default")
    row = admin("namespaces", "set", team, "--quota", size + 10, "--keep-days", 7, "--json").json
    assert row["policy"] == {**defaults, "keep_days": 7, "quota_bytes": size + 10}
    assert (row["entries"], row["revisions"], row["bytes"]) == (1, 1, size)
    text = refused(server.api().begin(make(key, namespace=team)), 507, "storage_full", "quota")
    assert f"holds {size} of the {size + 10} bytes" in text
    row = admin("namespaces", "set", team, "--quota", "default", "--keep-bytes", "1.5GiB", "--json").json
    assert row["policy"] == {**defaults, "keep_days": 7, "keep_bytes": 3 << 29}
    publish(server, key, team, first)
    row = admin("namespaces", "set", team, "--keep-bytes", "none", "--keep-days", "none", "--json").json
    assert row["policy"] == {**defaults, "keep_days": "none", "keep_bytes": "none"}
    assert admin("namespaces", "show", team).out.splitlines()[1].split()[-2:] == ["none", "none"]
    assert admin("namespaces", "set", team, "--quota", "much").status == 2
    assert admin("namespaces", "set", team, "--keep-revisions", "0").status == 2
    assert admin("namespaces", "set", "No!", "--keep-days", "1").status == 2


def test_entries_are_found_by_their_facts(admin: Admin, server: Server, key: SigningKey, team: str) -> None:
    gpu = {**FINGERPRINT, "torch": "2.11.0+cu128", "gpu": "NVIDIA H200"}
    model = Digest.of(b"big")
    big = publish(
        server,
        key,
        team,
        name="llm",
        target="llm/bf16",
        fingerprint=gpu,
        workload=Workload(model=model, inputs=INPUTS, dtype="bf16"),
    )
    small = publish(server, key, team, tag="v1", target="bert/f32", model=b"small")
    lane = publish(server, key, team, lane="pr-1")

    def found_entries(*words: object) -> set[str]:
        return {row["entry"] for row in admin("entries", "list", team, *words, "--json").rows}

    everything = {publication.manifest.entry for publication in (big, small, lane)}
    assert found_entries() == everything
    assert found_entries("--gpu", "h200") == found_entries("--device", "h200") == {big.manifest.entry}
    assert big.manifest.entry in found_entries("--device", "avx2") and found_entries("--gpu", "neon") == set()
    assert found_entries("--torch", "2.11") == found_entries("--torch", "2.11.0") == {big.manifest.entry}
    assert found_entries("--torch", "2.1") == set()
    assert found_entries("--model", model.hex[:10]) == {big.manifest.entry}
    assert found_entries("--dtype", "bfloat16") == found_entries("--shape", "8x128") == {big.manifest.entry}
    assert found_entries("--dtype", "bfloat") == found_entries("--shape", "8x12") == set()
    assert found_entries("--target", "bf16") == {big.manifest.entry}
    assert found_entries("--lane", "pr-1") == {lane.manifest.entry}
    assert found_entries("--trunk") == everything - {lane.manifest.entry}
    assert found_entries("--unused-days", 1) == set()
    one = admin("entries", "list", f"{team}/bert:v1", "--json").rows
    assert [row["entry"] for row in one] == [small.manifest.entry]
    table = admin("entries", "list", team).out.splitlines()
    assert table[0].split()[:3] == ["entry", "name", "target"] and len(table) == 4
    assert any("NVIDIA H200" in line and big.manifest.entry.hex[:12] in line for line in table)
    details = admin("entries", "show", big.manifest.entry.hex[:12])
    assert "NVIDIA H200" in details.out and big.revision.hex[:12] in details.out
    assert "team" not in admin("names", "list", team).out.replace(team, "")
    assert {row["name"] for row in admin("names", "list", team, "--json").rows} == {"llm", "bert"}


def test_names_are_found_by_a_part_and_by_a_pattern(
    admin: Admin, server: Server, key: SigningKey, team: str
) -> None:
    first = publish(server, key, team, name="sentiment")
    publish(server, key, team, first, name="sentiment", content=b"second")
    publish(server, key, team, name="sentiment", tag="v1")
    publish(server, key, team, name="vision")

    def names_of(*words: object) -> list[str]:
        rows = admin("entries", "list", *words, "--json").rows
        return sorted(f"{row['name']}:{row['tag']}" for row in rows)

    both = ["sentiment:latest", "sentiment:v1"]
    assert names_of(f"{team}/sentiment") == names_of(f"{team}/sent") == names_of(f"{team}/sent*") == both
    assert names_of(f"{team}/s*:v*") == ["sentiment:v1"]
    assert names_of(f"{team[:-2]}*") == [*both, "vision:latest"]
    assert {row["namespace"] for row in admin("entries", "list", "sentimen", "--json").rows} >= {team}
    assert [row["name"] for row in admin("names", "list", f"{team}/sent*", "--json").rows] == ["sentiment"]
    assert team in admin("names", "list").out
    revisions = admin("revisions", "list", f"{team}/sentiment", "--json").rows
    assert len(revisions) == 3 and {row["name"] for row in revisions} == {"sentiment"}
    assert f"{team}/sentiment:v1 bert/f32, entry " in admin("revisions", "list", f"{team}/sent*").out
    for words, hint in (
        (("entries", "list", f"{team}/sentimnet"), f"did you mean {team}/sentiment?"),
        (("entries", "list", f"{team}/x*z"), "nothing is under"),
        (("entries", "list", f"{team}/sentiment:v2"), "its tags: latest, v1"),
        (("names", "list", "nope-nope"), "the command ls lists the names"),
        (("revisions", "list", f"{team}/visoin"), f"did you mean {team}/vision?"),
        (("stats", "nope-nope"), "does not exist"),
    ):
        result = admin(*words)
        assert (result.status, result.out) == (4, ""), (words, result)
        assert hint in result.err and result.err.count("\n") == 1, result
    unmatched = admin("entries", "list", team, "--gpu", "H9")
    assert (unmatched.status, unmatched.out) == (0, "none that has all these facts\n")


def test_a_table_fits_the_terminal_and_has_other_forms(
    admin: Admin, server: Server, key: SigningKey, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = {**FINGERPRINT, "torch": "2.11.0+cu128", "gpu": "NVIDIA H200"}
    publish(server, key, team, target="llm/bf16/max-autotune", fingerprint=gpu, measured={"steady": 0.0123})
    for columns in (80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        narrow = admin("entries", "list", team)
        assert max(map(len, narrow.out.splitlines())) <= columns, narrow.out
        assert f"{team}/bert:latest" in narrow.out and "llm/bf16/max-autotune" in narrow.out
        assert "not shown, for want of room: " in narrow.err and "-o wide" in narrow.err
    wide = admin("entries", "list", team, "-o", "wide")
    assert wide.err == "" and "NVIDIA H200" in wide.out and "2.11.0+cu128" in wide.out
    assert re.search(r"now|\d (ms|s|min) ago", wide.out)
    monkeypatch.delenv("COLUMNS")
    assert "NVIDIA H200" in admin("entries", "list", team).out, "a pipe has any width"
    header, row = admin("entries", "list", team, "-o", "csv").out.splitlines()
    assert header.startswith("entry,name,target,torch,device,size,published,")
    assert re.search(r",\d{4}-\d\d-\d\d \d\d:\d\d UTC,", row)
    [entry] = admin("entries", "list", team, "-o", "json").rows
    assert re.search(r"measured steady +12.3 ms", admin("entries", "show", entry["entry"]).out)
    assert admin("entries", "list", team, "-o", "xml").status == 2


def test_a_plan_and_a_deed_read_differently(admin: Admin, server: Server, key: SigningKey, team: str) -> None:
    publish(server, key, team)
    publish(server, key, team, target="other")
    for words, would, did in (
        (("entries", "delete", team, "--target", "other"), "would delete 1 entry, ", "deleted 1 entry, "),
        (("tag", f"{team}/bert", "prod"), "would tag 1 of 1 entry", "tagged 1 of 1 entry"),
        (("entries", "delete", team), "would delete 2 entries, ", "deleted 2 entries, "),
    ):
        plan, deed = admin(*words), admin(*words, "--apply")
        assert plan.out.splitlines()[-1].startswith(would), plan
        assert deed.out.splitlines()[-1].startswith(did), deed
        assert "nothing was changed" in plan.err and deed.err == ""
        assert "would" not in deed.out


def test_listings_go_on_past_a_page(
    admin: Admin, server: Server, key: SigningKey, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachesvc.queries.registry_calls.MAX_PAGE", 2)
    publication = [publish(server, key, team, target=f"t{number}").manifest.entry for number in range(5)]
    rows = admin("entries", "list", team, "--json").rows
    assert sorted(row["entry"] for row in rows) == sorted(publication)
    assert len(admin("entries", "list", team, "--limit", 3, "--json").rows) == 3


def test_a_deletion_is_a_plan_until_it_is_applied(
    admin: Admin, server: Server, key: SigningKey, team: str
) -> None:
    first = publish(server, key, team)
    publish(server, key, team, first, content=b"second")
    other = publish(server, key, team, target="other")
    plan = admin("entries", "delete", team, "--target", "bert")
    assert plan.status == 0 and "would delete 1 entry, " in plan.out and "--apply" in plan.err
    assert len(admin("entries", "list", team, "--json").rows) == 2
    assert admin("revisions", "pin", first.revision, "--why", "the demo").status == 0
    refusal = admin("entries", "delete", team, "--target", "bert", "--apply")
    assert refusal.status == 2 and "is pinned" in refusal.err
    assert admin("revisions", "unpin", first.revision).status == 0
    result = admin("entries", "delete", team, "--target", "bert", "--apply", "--json")
    assert result.json["applied"] and len(result.json["rows"]) == 1
    assert [row["entry"] for row in admin("entries", "list", team, "--json").rows] == [other.manifest.entry]
    refused(server.api().pack(first.revision), 404, "not_found")
    assert admin("entries", "delete", "--apply").status == 2
    assert admin("entries", "delete", "--entry", first.manifest.entry.hex[:12]).status == 4


def test_a_deletion_finds_an_entry_by_its_first_digits_or_says_that_nothing_matches(
    admin: Admin, server: Server, key: SigningKey, team: str
) -> None:
    entry = publish(server, key, team).manifest.entry
    for text in (entry.hex[:12], str(entry), f"sha256:{entry.hex[:8]}"):
        plan = admin("entries", "delete", text)
        assert plan.status == 0 and "would delete 1 entry, " in plan.out, (text, plan)
    for words, status, hint in (
        (("0123456789ab",), 4, "0123456789ab"),
        ((f"{team}/bet",), 4, f"did you mean {team}/bert?"),
        ((f"{team}/ber",), 4, f"did you mean {team}/bert?"),
        ((f"{team}/bert:prod",), 4, "latest"),
        ((team, "--target", "other"), 4, "no entry matches"),
        (("--model", "ffff"), 4, "no entry matches"),
        ((entry.hex[:12], "--target", "bert"), 2, "stands alone"),
    ):
        answer = admin("entries", "delete", *words)
        assert (answer.status, answer.out, answer.err.count("\n")) == (status, "", 1), (words, answer)
        assert hint in answer.err, (words, answer)
    assert admin("entries", "delete", entry.hex[:12], "--apply").status == 0
    assert admin("entries", "delete", team).status == 4


def test_revisions_are_compared_deleted_and_rolled_back(
    admin: Admin, server: Server, key: SigningKey, team: str
) -> None:
    first = publish(server, key, team, measured={"compile": 1.5})
    second = publish(server, key, team, first, content=b"second", measured={"compile": 2.5})
    line = admin("revisions", "list", first.manifest.entry.hex[:10], "--json").rows
    assert [(row["revision"], row["head"]) for row in line] == [
        (second.revision, True),
        (first.revision, False),
    ]
    diff = admin("revisions", "diff", first.revision, second.revision.hex[:12])
    assert "~ inductor/aa/caa.py" in diff.out and "measured.compile" in diff.out
    assert "0 added, 0 removed, 1 changed, 0 the same" in diff.out
    head = admin("revisions", "delete", second.revision)
    assert head.status == 2 and "is the head" in head.err
    plan = admin("revisions", "rollback", first.revision)
    assert plan.status == 0 and "would roll" in plan.out
    assert ok(server.api().resolve(team))["revisions"][0]["revision"] == second.revision
    assert admin("revisions", "rollback", first.revision, "--apply").status == 0
    [now] = ok(server.api().resolve(team))["revisions"]
    assert now["pack"] == first.manifest.pack.digest
    [row] = admin("audit", "--action", "revision.rollback", "--subject", now["revision"], "--json").rows
    assert (row["namespace"], row["details"]["over"]) == (team, second.revision)
    assert row["details"]["bytes_of"].endswith(first.revision)
    assert server.api().pack(now["revision"]).content == first.pack
    line = admin("revisions", "list", first.manifest.entry, "--json").rows
    assert line[0]["sequence"] > line[1]["sequence"] > line[2]["sequence"]
    assert admin("revisions", "delete", second.revision, "--apply").status == 0
    assert admin("revisions", "show", second.revision).status == 4
    details = admin("revisions", "show", first.revision)
    assert key.public in details.out and "avx2" in details.out


def test_a_tag_is_a_publication(admin: Admin, server: Server, key: SigningKey, team: str) -> None:
    publication = publish(server, key, team, tag="sha-1")
    publish(server, key, team, tag="sha-1", lane="pr-1")
    plan = admin("tag", f"{team}/bert:sha-1", "prod")
    assert plan.status == 0 and "would tag 1 of 1 entry" in plan.out
    refused(server.api().resolve(team, tags=["prod"]), 404, "not_found")
    assert admin("tag", f"{team}/bert:sha-1", "prod", "--apply").status == 0
    [revision_row] = ok(server.api().resolve(team, tags=["prod"]))["revisions"]
    assert revision_row["pack"] == publication.manifest.pack.digest
    [row] = admin("audit", "--action", "revision.tag", "--subject", revision_row["revision"], "--json").rows
    assert (row["namespace"], row["details"]["name"]) == (team, f"{team}/bert:prod")
    assert row["details"]["bytes_of"] == f"{team}/bert:sha-1@{publication.revision}"
    again = admin("tag", f"{team}/bert:sha-1", "prod", "--apply", "--json")
    assert [row["state"] for row in again.json["rows"]] == ["the same already"]
    assert admin("tag", f"{team}/bert:none", "prod").status == 4


def test_a_quarantine_reaches_readers_with_its_reason(
    admin: Admin, server: Server, key: SigningKey, team: str
) -> None:
    publication = publish(server, key, team)
    assert admin("quarantine", "set", publication.revision, "--why", "wrong numbers", "--apply").status == 0
    answer = ok(server.api().resolve(team))
    assert answer["revisions"] == []
    assert "wrong numbers" in answer["rejected"][0]["differences"][0]["mine"]
    listing = admin("quarantine", "list").out
    assert publication.revision.hex[:12] in listing and "everybody" in listing and "wrong numbers" in listing
    assert admin("quarantine", "release", publication.revision.hex[:12]).status == 0
    assert len(ok(server.api().resolve(team))["revisions"]) == 1
    assert admin("quarantine", "release", publication.revision).status == 4


@pytest.mark.parametrize("everywhere", [False, True])
def test_revisions_of_a_removed_signer_are_offered_to_nobody(
    admin: Admin, server: Server, team: str, everywhere: bool
) -> None:
    leaked, namespace = SigningKey.generate(), "*" if everywhere else team
    assert admin("signers", "add", leaked.public, "-n", namespace).status == 0
    publish(server, leaked, team)
    assert len(ok(server.api().resolve(team))["revisions"]) == 1
    assert admin("signers", "remove", leaked.public, "-n", namespace, "--apply").status == 0
    answer = ok(server.api().resolve(team))
    assert answer["revisions"] == []
    assert "its signer was removed" in answer["rejected"][0]["differences"][0]["mine"]
    assert admin("signers", "add", leaked.public, "-n", team).status == 0
    assert len(ok(server.api().resolve(team))["revisions"]) == 1


def test_a_leaked_key_is_revoked_and_its_nodes_are_listed(
    admin: Admin, server: Server, team: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leaked = SigningKey.generate()
    assert admin("signers", "add", leaked.public, "-n", team, "--label", "old CI").status == 0
    made = publish(server, leaked, team)
    report = {
        "node": "5" * 32,
        "fingerprint": FINGERPRINT,
        "revisions": [{"revision": made.revision, "state": "hit"}],
    }
    ok(server.api().http.post("/v1/reports", json=report))
    revoke = ("signers", "revoke", leaked.public, "--why", "leaked in a log")
    planned = admin(*revoke)
    assert planned.status == 0, planned.err
    assert f"{team}/bert" in planned.out and "5" * 32 in planned.out and "used" in planned.out
    assert "would refuse ed25519:" in planned.out and "--apply does it" in planned.err
    assert "withhold 1 revision under 1 name; 1 node reported some, 1 used it" in planned.out
    assert len(ok(server.api().resolve(team))["revisions"]) == 1
    done = admin(*revoke, "--apply", "--json").json
    assert done["applied"] and done["revocation"]["names"][0]["revisions"] == 1
    assert done["revocation"]["signer_of"] == [team] and done["revocation"]["nodes"][0]["node"] == "5" * 32
    answer = ok(server.api().resolve(team))
    assert "its signer was revoked: leaked in a log" in answer["rejected"][0]["differences"][0]["mine"]
    listed = admin("signers", "list").out
    assert re.search(rf"\* +{re.escape(leaked.public)} .*20\d\d-\d\d-\d\d .*leaked in a log", listed), listed
    shown = admin("revisions", "show", made.revision).out
    assert "its signer was revoked: leaked in a log" in shown
    # An operator's own list still has the key: what it signed is not signed again all the same.
    monkeypatch.setenv("CACHESVC_TRUSTED_KEYS", f"*={leaked.public}")
    tagged = admin("tag", f"{team}/bert", "prod", "--apply")
    assert tagged.status == 7 and "its signer was revoked: leaked in a log" in tagged.err, tagged
    exported = admin("export", team, "-o", tmp_path / "team.export")
    assert exported.status == 4 and f"left out: {team}/bert:latest" in exported.err, exported
    again = admin("signers", "add", leaked.public, "-n", team)
    assert again.status == 2 and "--again" in again.err and "leaked in a log" in again.err
    assert admin("signers", "add", leaked.public, "-n", team, "--again").status == 0
    assert len(ok(server.api().resolve(team))["revisions"]) == 1
    [row] = admin("audit", "--action", "signer.revoke", "--subject", leaked.public, "--json").rows
    assert row["details"]["why"] == "leaked in a log"
    assert admin("signers", "revoke", "no key", "--apply").status == 2


def test_statistics_and_collection_are_shown(
    admin: Admin, server: Server, key: SigningKey, team: str
) -> None:
    publication = publish(server, key, team, measured={"compile": 90.0})
    report = {
        "node": "0" * 32,
        "fingerprint": FINGERPRINT,
        "revisions": [{"revision": publication.revision, "state": "hit", "saved": 80.0}],
    }
    ok(server.api().http.post("/v1/reports", json=report))
    statistics = admin("stats", team, "--json").json
    assert (statistics["entries"], statistics["starts"]["hit"], statistics["saved_seconds"]) == (1, 1, 80.0)
    assert [row["entry"] for row in statistics["dearest"]] == [publication.manifest.entry]
    [row] = statistics["dearest"]
    assert (row["hits"], row["hits_before"]) == (1, 0)
    publish(server, key, team, publication, content=b"newer")
    [row] = admin("stats", team, "--json").json["heaviest"]
    assert (row["hits"], row["hits_before"]) == (0, 1), "a new head begins at 0, and the hits before stay"
    text = admin("stats", team).out
    assert re.search(r"hits +before", text) and "before: of older revisions" in text
    assert "1 hit" in text and "80.0 s" in text and "heaviest" in text
    plan = admin("gc")
    assert plan.status == 0 and "would remove 0 revisions" in plan.out and "--apply" in plan.err
    assert "the policies keep what there is: " in plan.err, "a plan of nothing has its reason"
    result = admin("gc", "--apply", "--json").json
    assert result["applied"] and set(result["collected"]) == {"revisions", "uploads", "objects", "entries"}


def test_an_operator_of_one_namespace_sees_no_other_namespace(
    admin: Admin, server: Server, key: SigningKey, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = publish(server, key, team + "x")
    publication = publish(server, key, team)
    token = admin("tokens", "create", "--label", "x", "--role", "admin", "-n", team, "--json").json["secret"]
    monkeypatch.setenv("CACHESVC_TOKEN", token)
    assert [row["entry"] for row in admin("entries", "list", "--json").rows] == [publication.manifest.entry]
    assert [row["namespace"] for row in admin("namespaces", "list", "--json").rows] == [team]
    assert {row["namespace"] for row in admin("audit", "--json").rows} == {team}
    assert admin("revisions", "show", other.revision).status == 4
    assert admin("entries", "show", other.manifest.entry.hex[:12]).status == 4
    assert admin("stats", team + "x").status == 3
    assert admin("gc").status == 3
    assert admin("fsck").status == 3
    assert admin("namespaces", "set", team + "x", "--keep-days", 1).status == 3


def test_a_reader_may_administer_nothing(
    admin: Admin, server: Server, key: SigningKey, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = publish(server, key, team)
    token = admin("tokens", "create", "--label", "x", "--role", "write", "-n", team, "--json").json["secret"]
    monkeypatch.setenv("CACHESVC_TOKEN", token)
    for words in (
        ("tokens", "list"),
        ("namespaces", "list"),
        ("entries", "delete", team, "--apply"),
        ("revisions", "pin", publication.revision),
        ("quarantine", "set", publication.revision, "--why", "x", "--apply"),
        ("quarantine", "list"),
        ("audit",),
        ("stats",),
    ):
        result = admin(*words)
        assert result.status == 3 or "may not admin" in result.err, (words, result)
        assert len(result.err.strip().splitlines()) == 1 or words[0] == "entries"
    assert [row["namespace"] for row in admin("entries", "list", team, "--json").rows] == [team]
    listing = admin("entries", "list", f"{team}-other", "--json")
    assert (listing.status, listing.out, listing.error["code"]) == (3, "", "forbidden")


def test_every_change_is_in_the_log(admin: Admin, server: Server, key: SigningKey, team: str) -> None:
    publication = publish(server, key, team)
    token = admin("tokens", "create", "--label", "x", "-n", team, "--json").json["token"]
    admin("tokens", "revoke", token, "--apply")
    admin("namespaces", "set", team, "--keep-days", 3)
    admin("revisions", "pin", publication.revision)
    admin("revisions", "unpin", publication.revision)
    admin("quarantine", "set", publication.revision, "--why", "because", "--apply")
    admin("quarantine", "release", publication.revision)
    admin("entries", "delete", team, "--apply")
    rows = [row for row in admin("audit", "--limit", 500, "--json").rows if row["namespace"] == team]
    assert [row["action"] for row in rows] == [
        "entry.delete",
        "quarantine.release",
        "quarantine.set",
        "revision.unpin",
        "revision.pin",
        "namespace.set",
        "token.revoke",
        "token.create",
    ]
    assert all(row["by"].startswith("t-") for row in rows)
    assert rows[2]["details"] == {"why": "because"}
    assert admin("audit", "--action", "token.revoke", "--subject", token, "--json").rows == [rows[6]]
    assert token in admin("audit", "--action", "token").out


def test_a_namespace_moves_as_one_file(
    admin: Admin, server: Server, key: SigningKey, team: str, tmp_path: Path
) -> None:
    one = publish(server, key, team)
    two = publish(server, key, team, target="two", content=b"two" * 999)
    out = tmp_path / "team.export"
    result = admin("export", team, "-o", out)
    assert result.status == 0 and "2 revisions" in result.out
    same = admin("import", out, "--json").json
    assert {row["state"] for row in same["rows"]} == {"same"} and not same["applied"]
    admin("entries", "delete", team, "--apply")
    assert admin("import", out).out.count("new") == 2
    assert server.api().resolve(team).status_code == 404
    assert admin("import", out, "--apply").status == 0
    revisions = {row["revision"] for row in ok(server.api().resolve(team))["revisions"]}
    assert revisions == {one.revision, two.revision}
    assert server.api().pack(two.revision).content == two.pack
    audit = admin("audit", "--action", "revision.import", "--json").rows
    assert {one.revision, two.revision} <= {row["subject"] for row in audit}
    newer = publish(server, key, team, two, target="two", content=b"newer")
    actions = admin("import", out, "--apply", "--json").json["rows"]
    assert sorted(row["state"] for row in actions) == ["kept", "same"]
    assert newer.revision in {row["revision"] for row in ok(server.api().resolve(team))["revisions"]}
    assert admin("export", team + "none", "-o", tmp_path / "none").status == 4
    assert not (tmp_path / "none").exists()


def test_an_altered_export_is_refused_before_anything_is_sent(
    admin: Admin, server: Server, key: SigningKey, team: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, key, team)
    publish(server, key, team, target="two", content=os.urandom(5000))
    out = tmp_path / "team.export"
    admin("export", team, "-o", out)
    admin("entries", "delete", team, "--apply")
    whole = out.read_bytes()
    with tarfile.open(out) as archive:
        last = [member for member in archive.getmembers() if member.name.endswith(".cachesvc")][-1]
    flipped = bytearray(whole)
    flipped[last.offset_data + last.size - 20] ^= 1
    out.write_bytes(flipped)
    assert admin("import", out, "--apply").status == 7
    out.write_bytes(whole[: last.offset])
    result = admin("import", out, "--apply")
    assert result.status == 7 and "not whole" in result.err
    out.write_bytes(b"something else")
    assert admin("import", out, "--apply").status == 7
    assert admin("import", tmp_path / "absent").status == 4
    out.write_bytes(whole)
    monkeypatch.setenv("CACHESVC_TRUSTED_KEYS", SigningKey.generate().public)
    monkeypatch.delenv("CACHESVC_SIGNING_KEY")
    assert admin("import", out, "--apply").status == 7
    assert server.api().resolve(team).status_code == 404
    assert admin("import", out, "--apply", "--trust", key.public).status == 0
    assert len(ok(server.api().resolve(team))["revisions"]) == 2


def test_every_mistake_is_reported_in_one_line(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, status, part in (
        (("entries", "show", "zz"), 2, "hex digits"),
        (("entries", "show", "deadbeef"), 4, "does not exist"),
        (("revisions", "show", Digest.of(b"?")), 4, "does not exist"),
        (("revisions", "show", "a/b"), 2, "hex digits"),
        (("tokens", "revoke", "t-none"), 4, "does not exist"),
        (("tokens", "expire", "../gc", "--now"), 4, "does not exist"),
        (("namespaces", "show", "nowhere"), 4, "does not exist"),
        (("names", "list", "A B"), 4, "nothing is under A B"),
        (("entries", "list", "a/B"), 2, "not a name"),
        (("migrate",), 2, "--local"),
        (("doctor",), 2, "--local"),
        (("--data", "x", "tokens", "list"), 2, "--local"),
    ):
        result = admin(*words)
        assert (result.status, result.out) == (status, ""), (words, result)
        assert part in result.err and result.err.startswith("error: ") and result.err.count("\n") == 1, result
    monkeypatch.setenv("CACHESVC_TOKEN", "csv_wrong")
    result = admin("tokens", "list")
    assert result.status == 3 and "cachesvc login" in result.err
    monkeypatch.delenv("CACHESVC_TOKEN")
    assert admin("tokens", "list").status == 3
    monkeypatch.delenv("CACHESVC_URL")
    assert admin("tokens", "list").status == 2
    monkeypatch.setenv("CACHESVC_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("CACHESVC_TOKEN", "csv_x")
    assert admin("tokens", "list").status == 6


def test_local_commands_work_on_the_database(
    command: Admin, own_column_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They work beside running servers too, unless the data folder holds the index of one."""
    own_server = own_column_server
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, value in own_server.env.items():
        monkeypatch.setenv(name, value)
    own_server.start()
    publication = publish(own_server, own_server.key, "team")
    local = ("admin", "--local", "--data", own_server.data)
    running = command(*local, "tokens", "list")
    if own_server.env:
        assert running.status == 0 and "first start" in running.out
    else:
        assert running.status == 2 and "another server works in it" in running.err
    own_server.kill()
    assert [row["label"] for row in command(*local, "tokens", "list", "--json").rows] == ["first start"]
    made_now = command(
        *local, "tokens", "create", "--label", "lost it", "--role", "admin", "-n", "*", "--json"
    ).json
    assert command(*local, "revisions", "pin", publication.revision.hex[:12]).status == 0
    assert command(*local, "entries", "show", "zz").status == 2
    assert command(*local, "revisions", "show", Digest.of(b"?")).status == 4
    assert command(*local, "fsck", "--deep").out == "2 checked, nothing is wrong\n"
    assert command(*local, "gc", "--apply").status == 0
    assert command(*local, "migrate").out == "the schema is up to date\n"
    with monkeypatch.context() as patch:
        # A command that needs no store works with wrong credentials of the store.
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        assert command(*local, "tokens", "list").status == 0
    export = command(*local, "export", "team", "-o", tmp_path / "x")
    assert export.status == 2 and "leave --local out" in export.err
    log = command(*local, "audit", "--json").rows
    assert {row["by"] for row in log[:3]} == {"console"}
    own_server.start()
    assert ok(own_server.api(made_now["secret"]).http.get("/v1/whoami"))["role"] == "admin"


def test_a_mistyped_folder_makes_no_registry(
    command: Admin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    nothing = ("admin", "--local", "--data", tmp_path / "typo")
    for words in (
        (*nothing, "stats"),
        (*nothing, "migrate", "--apply"),
        (*nothing, "doctor", "--apply"),
        ("admin", "--local", "migrate"),
        ("admin", "--local", "tokens", "create", "--label", "x", "-n", "*"),
    ):
        result = command(*words)
        assert (result.status, result.out) == (4, ""), (words, result)
        assert "no registry is there" in result.err and result.err.count("\n") == 1, result
    assert list(tmp_path.iterdir()) == []


def test_doctor_checks_the_folder_that_packs_are_in(command: Admin, tmp_path: Path) -> None:
    local = ("admin", "--local", "--data", tmp_path, "doctor")
    plan = command(*local)
    assert plan.status == 0 and "lists" in plan.out and "nothing was changed" in plan.err
    stored = tmp_path / "blobs" / "objects"
    assert not list(stored.iterdir()), "a plan writes nothing"
    result = command(*local, "--apply", "--json")
    assert result.status == 0, result
    assert {row["problem"] for row in result.json["rows"]} == {""}
    assert {row["check"] for row in result.json["rows"]} == {check.__name__ for check in testing.CHECKS}
    assert not [path for path in stored.rglob("*") if path.is_file()], (
        "the check removes the object that it wrote"
    )


def test_doctor_says_which_rule_a_store_breaks(command: Admin, tmp_path: Path) -> None:
    (tmp_path / "blobs" / "objects").mkdir(parents=True)
    (tmp_path / "blobs" / "objects" / "contract").write_text("a file where the folder of the checks would be")
    result = command("admin", "--local", "--data", tmp_path, "doctor", "--apply")
    assert result.status == 1
    assert "Not a directory" in result.out and "is usable" in result.out
    assert " failed" in result.out.splitlines()[-1]


@pytest.mark.services
def test_doctor_checks_a_bucket_and_its_links(
    command: Admin, gateway: Gateway, bucket_at_gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    for name, value in gateway.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CACHESVC_SERVER_BUCKET", bucket_at_gateway)
    monkeypatch.setenv("CACHESVC_SERVER_BUCKET_PREFIX", "some/where")
    monkeypatch.setenv("CACHESVC_SERVER_BUCKET_ENDPOINT", gateway.endpoint)
    client = boto3.client("s3", endpoint_url=gateway.endpoint, **gateway.client)
    client.put_object(Bucket=bucket_at_gateway, Key="some/where/packs/u-1", Body=b"a pack")
    result = command("admin", "--local", "doctor", "--apply")
    assert (
        result.status == 0 and "links are not forged" in result.out and result.out.endswith(" 0 failed\n")
    ), result
    keys = [row["Key"] for row in client.list_objects_v2(Bucket=bucket_at_gateway)["Contents"]]
    assert keys == ["some/where/packs/u-1"]
    deny = {"Effect": "Deny", "Principal": {"AWS": ["*"]}, "Action": ["s3:GetObject"]}
    deny["Resource"] = [f"arn:aws:s3:::{bucket_at_gateway}/*"]
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    client.put_bucket_policy(Bucket=bucket_at_gateway, Policy=policy)
    result = command("admin", "--local", "doctor", "--apply")
    assert result.status == 1 and "GetObject" in result.out, result


@pytest.mark.services
def test_fsck_finds_and_repairs_in_a_bucket(
    command: Admin, own_server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The damage is that of test_fsck_finds_and_repairs, done by somebody who may write to the bucket."""
    import boto3

    own_server.env = production(request)
    gateway: Gateway = request.getfixturevalue("gateway")
    own_server.start()
    for name, value in (("URL", own_server.url), ("TOKEN", own_server.token)):
        monkeypatch.setenv(f"CACHESVC_{name}", value)
    good, lost, rotten = (
        publish(own_server, own_server.key, "team", target=what, content=what.encode())
        for what in ("good", "lost", "rotten")
    )
    store = boto3.client("s3", endpoint_url=gateway.endpoint, **gateway.client)
    place = {"Bucket": own_server.env["CACHESVC_SERVER_BUCKET"]}
    for row in store.list_objects_v2(**place)["Contents"]:
        key = {**place, "Key": row["Key"]}
        body = store.get_object(**key)["Body"].read()
        if body == lost.pack:
            store.delete_object(**key)
        elif body == rotten.pack:
            store.put_object(**key, Body=body[:-1] + bytes([body[-1] ^ 1]))
    store.put_object(**place, Key="some/where/packs/u-nobody-knows", Body=b"orphan")
    quick = command("admin", "fsck", "--json")
    assert quick.status == 1
    assert sorted(row["problem"] for row in quick.json["rows"]) == ["missing", "orphan"]
    fixed = command("admin", "fsck", "--deep", "--apply")
    assert fixed.status == 0 and "3 of 3 repaired" in fixed.out
    assert [row["revision"] for row in ok(own_server.api().resolve())["revisions"]] == [good.revision]
    assert command("admin", "fsck", "--deep").status == 0


def test_fsck_finds_and_repairs(command: Admin, own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    own_server.start()
    for name, value in (("URL", own_server.url), ("TOKEN", own_server.token)):
        monkeypatch.setenv(f"CACHESVC_{name}", value)
    good = publish(own_server, own_server.key, "team", target="good")
    lost = publish(own_server, own_server.key, "team", target="lost", content=b"lost")
    rotten = publish(own_server, own_server.key, "team", target="rotten", content=b"rotten")
    store = own_server.data / "blobs" / "objects" / "packs"
    by_content = {path.read_bytes(): path for path in store.iterdir()}
    by_content[lost.pack].unlink()
    flipped = bytearray(rotten.pack)
    flipped[-1] ^= 1
    by_content[rotten.pack].write_bytes(flipped)
    (store / "u-nobody-knows").write_bytes(b"orphan")
    quick = command("admin", "fsck", "--json")
    assert quick.status == 1
    assert sorted(row["problem"] for row in quick.json["rows"]) == ["missing", "orphan"]
    deep = command("admin", "fsck", "--deep")
    assert deep.status == 1 and "plan: 6 checked, 3 to repair" in deep.out and "digest" in deep.out
    assert len(ok(own_server.api().resolve())["revisions"]) == 3
    fixed = command("admin", "fsck", "--deep", "--apply")
    assert fixed.status == 0 and "3 of 3 repaired" in fixed.out
    assert [row["revision"] for row in ok(own_server.api().resolve())["revisions"]] == [good.revision]
    assert command("admin", "fsck", "--deep").status == 0
    log = command("admin", "audit", "--action", "fsck", "--json").rows
    assert sorted(row["details"]["problem"] for row in log) == ["digest", "missing", "orphan"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_the_commands(command: Admin, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_CACHESVC_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "cachesvc admin na")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "cachesvc admin na")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    result = command()
    assert "namespaces" in result.out and "names" in result.out and "tokens" not in result.out


def test_every_command_has_help(command: Admin) -> None:
    result = command("admin", "--help")
    assert "Exit status" in result.out
    for group in ("tokens", "signers", "namespaces", "names", "entries", "revisions", "quarantine"):
        assert group in result.out
        assert command("admin", group, "--help").status == 0


def test_a_receiver_of_events_is_added_tried_listed_and_removed(admin: Admin, team: str) -> None:
    refused = admin("webhooks", "add", "https://127.0.0.1:1/", "-n", team)
    assert refused.status == 2 and refused.err.count("\n") == 1
    assert "to which nothing is sent" in refused.err and "private_addresses" in refused.err
    wrong = admin("webhooks", "add", "https://hooks.example/x", "-n", team, "-e", "published")
    assert wrong.status == 2 and "known: revision.published, " in wrong.err
    row = admin("webhooks", "add", "https://no.invalid/x", "-n", team, "-e", "revision.cold", "--json").json
    assert row["secret"].startswith("whsec_") and row["events"] == ["revision.cold"]
    listed = admin("webhooks", "list")
    assert row["webhook"] in listed.out and row["secret"] not in listed.out
    failed = admin("webhooks", "test", row["webhook"])
    assert failed.status == 6 and "webhook.test was not delivered after" in failed.err
    assert admin("webhooks", "test", "w-0000").status == 4
    assert "would remove" in admin("webhooks", "remove", row["webhook"]).out
    assert admin("webhooks", "remove", row["webhook"], "--apply").status == 0
    assert row["webhook"] not in admin("webhooks", "list").out
