"""Who built a revision is said by the registry that verified the job's token, and by nobody else.

The registry is the real application in this process, and the issuer a real HTTP server with real keys. The
attacker of most tests has more than a thief of one secret: a write token and a signing key that the
namespace accepts.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from registry_making import FINGERPRINT, Publication, make

from cachesvc.domain.builders import identity_of
from cachesvc.warm.provenance import BuildOrigin
from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, Untrusted
from cachesvc_client.wire.manifest.provenance import LOCAL_BUILDER, BuilderIdentity, Dependency
from cachesvc_client.wire.manifest.requirement import Requirement
from cachesvc_client.wire.names import Lane, Name, Target
from cachesvc_client.wire.requests.protocol import WhoAmI

from .job_world import MAIN, PULL, World, job_world

COMMIT = "c0ffee" * 6 + "beef"
JOB = {
    "sha": COMMIT,
    "run_id": "77",
    "run_attempt": "2",
    "workflow_ref": "org/app/.github/workflows/warm.yml@refs/heads/main",
}
"""Claims of GitHub that describe the job's run."""
WORKFLOW = "org/app/.github/workflows/warm.yml@refs/heads/main"
TOKEN, PASSWORD = "ghp_planted0token", "planted-password"


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def world(tmp_path: Path, key: SigningKey) -> Iterator[World]:
    with job_world(tmp_path, key) as running:
        yield running


def stolen(world: World) -> str:
    """A write token of the namespace that was given to no job."""
    body = {"label": "stolen", "role": "write", "namespace": "team"}
    return world.call("POST", "/v1/tokens", world.admin, json=body).json()["secret"]


def identity(world: World, secret: str) -> BuilderIdentity | None:
    """Who the registry says that the holder of a token is."""
    answer = world.call("GET", "/v1/whoami", secret).content
    return codec.build(WhoAmI, codec.parse_json(answer, limit=1 << 20, what="whoami")).builder


def origin(builder: BuilderIdentity | None, *dependencies: Dependency) -> BuildOrigin:
    return BuildOrigin("warm.toml", Digest.of(b"spec"), dependencies, builder)


def built(world: World, by: BuildOrigin, *, change: Any = None, **made: Any) -> Publication:
    """A revision with the provenance of ``by``, signed by a key that the namespace accepts."""
    plain = make(world.key, **{"name": "bert", **made})
    statement = plain.manifest.statement
    name = Name(statement.namespace, statement.name, statement.tag)
    provenance = by.provenance(name, statement.lane, statement.target, FINGERPRINT, ("host",))
    attestation = by.statement(provenance, plain.manifest.pack)
    if change is not None:
        change(attestation)
    manifest = replace(plain.manifest, attestation=attestation)
    return Publication(manifest, world.key.sign(manifest), plain.pack)


def publish(world: World, secret: str, made: Publication, **query: str) -> httpx.Response:
    statement = made.manifest.statement
    query |= {"namespace": statement.namespace, "name": statement.name}
    query |= {"lane": statement.lane} if statement.lane else {}
    return world.call(
        "POST", "/v1/bundles", secret, params=query, content=bundle_head(made.envelope) + made.pack
    )


def refused(answer: httpx.Response, *words: str) -> None:
    assert answer.status_code == 403, answer.text
    error = answer.json()["error"]
    line = f"{error['message']} ({error['hint']})"
    assert error["code"] == "untrusted" and line.isprintable(), line
    assert all(word in line for word in words), line


def shown(world: World, made: Publication) -> dict[str, Any]:
    return world.call("GET", f"/v1/revisions/{made.revision}/provenance", world.admin).json()


def resolved(world: World, **more: Any) -> dict[str, Any]:
    body = {"namespace": "team", "name": "bert", "fingerprint": FINGERPRINT, **more}
    return world.call("POST", "/v1/resolve", world.admin, json=body).json()


def job_of_main(world: World) -> tuple[str, BuilderIdentity]:
    world.rule(claims=MAIN)
    secret = world.issued(**JOB)["secret"]
    builder = identity(world, secret)
    assert builder is not None
    return secret, builder


def test_a_job_of_main_publishes_what_it_built(world: World) -> None:
    secret, builder = job_of_main(world)
    assert builder == BuilderIdentity(
        f"{world.issuer.url}/{WORKFLOW}",
        f"git+{world.issuer.url}/org/app@refs/heads/main",
        COMMIT,
        f"{world.issuer.url}/org/app/actions/runs/77/attempts/2",
    )
    made = built(world, origin(builder))
    assert publish(world, secret, made).status_code == 200
    record = shown(world, made)
    assert record["accepted"] is True and record["statement"] == made.manifest.attestation
    row = world.call("GET", f"/v1/revisions/{made.revision}", world.admin).json()
    assert (row["builder"], row["source_ref"]) == (builder.builder, "refs/heads/main")
    # The next token of the same job is as good: a long run renews it.
    renewed = world.issued(**JOB)["secret"]
    assert publish(world, renewed, built(world, origin(builder), name="other")).status_code == 200


def test_a_stolen_write_token_with_the_signing_key_cannot_claim_the_identity_of_ci(world: World) -> None:
    _, builder = job_of_main(world)
    secret = stolen(world)
    assert identity(world, secret) is None
    made = built(world, origin(builder))
    refused(publish(world, secret, made), builder.builder, "no job's")
    assert resolved(world).get("revisions", []) == []
    # What it builds itself it may publish, as what it is.
    local = built(world, origin(None))
    assert publish(world, secret, local).status_code == 200
    assert shown(world, local)["statement"]["predicate"]["runDetails"]["builder"]["id"] == LOCAL_BUILDER


def test_an_admins_token_claims_no_job_without_an_import(world: World) -> None:
    _, builder = job_of_main(world)
    made = built(world, origin(builder))
    refused(publish(world, world.admin, made), "no job's")
    refused(publish(world, stolen(world), made, deed="import"), "no job's")
    assert publish(world, world.admin, made, deed="import").status_code == 200
    audit = world.call("GET", "/v1/audit?action=revision.import", world.admin).json()["rows"]
    assert audit[0]["details"]["builder"] == builder.builder


def test_a_pull_requests_token_cannot_claim_main(world: World) -> None:
    _, main = job_of_main(world)
    world.rule(claims={"repository": "org/app"}, lane="pr-{number}")
    secret = world.issued(**{**JOB, **PULL})["secret"]
    pull = identity(world, secret)
    assert pull is not None and pull.builder.endswith("@refs/pull/7") and "main" not in pull.source
    lane = Lane("pr-7")
    refused(publish(world, secret, built(world, origin(main), lane=lane)), "refs/heads/main", "refs/pull/7")
    mixed = replace(pull, source=main.source)
    refused(publish(world, secret, built(world, origin(mixed), lane=lane)), "source")
    assert publish(world, secret, built(world, origin(pull), lane=lane)).status_code == 200
    assert publish(world, secret, built(world, origin(main))).status_code == 403  # nor into the trunk


def test_a_pull_request_target_job_is_not_of_main_though_its_ref_says_so(world: World) -> None:
    world.rule(claims={"repository": "org/app"}, lane="review")
    secret = world.issued(**{**JOB, "event_name": "pull_request_target"})["secret"]
    builder = identity(world, secret)
    assert builder is not None
    assert "refs/heads/main" not in builder.builder + builder.source and "refs/pull/" in builder.source


def test_a_job_cannot_claim_another_job(world: World) -> None:
    secret, builder = job_of_main(world)
    for what in ("builder", "source", "commit", "invocation"):
        other = "d" * 40 if what == "commit" else getattr(builder, what) + "x"
        refused(publish(world, secret, built(world, origin(replace(builder, **{what: other})))), "provenance")


def test_a_job_without_a_source_cannot_type_one(world: World) -> None:
    world.rule(claims={"sub": "system:serviceaccount:team:builder"})
    secret = world.issued(
        sub="system:serviceaccount:team:builder", repository=None, ref=None, event_name=None
    )["secret"]
    builder = identity(world, secret)
    assert builder == BuilderIdentity(f"{world.issuer.url}#system:serviceaccount:team:builder")
    typed = replace(builder, source="git+https://github.com/org/app@refs/heads/main")
    refused(publish(world, secret, built(world, origin(typed))), "source")
    assert publish(world, secret, built(world, origin(builder))).status_code == 200


def test_a_local_builder_cannot_name_a_source(world: World) -> None:
    source = Dependency("source", "git+https://github.com/org/app@refs/heads/main", {"gitCommit": COMMIT})
    refused(publish(world, stolen(world), built(world, origin(None, source))), "nobody vouches")


def test_an_unknown_statement_is_not_vouched_for(world: World) -> None:
    secret, builder = job_of_main(world)

    def newer(attestation: dict[str, Any]) -> None:
        attestation["predicateType"] = "https://slsa.dev/provenance/v9"

    refused(publish(world, secret, built(world, origin(builder), change=newer)), "upgrade the registry")


def test_an_issuer_speaks_for_its_own_host_alone() -> None:
    claims = {"repository": "org/app", "ref": "refs/heads/main", **JOB}
    github = identity_of("https://token.actions.githubusercontent.com", "x", claims)
    assert github is not None and github.builder == f"https://github.com/{WORKFLOW}"
    hostile = (
        "https://evil.example",
        "https://token.actions.githubusercontent.com.evil.example",
        "https://evil.example/https://github.com",
    )
    for issuer in hostile:
        other = identity_of(issuer, "x", claims)
        assert other is not None and not other.builder.startswith("https://github.com/")
    for repository in ("org/app/../../evil/app", "../x"):
        assert identity_of(hostile[0], "x", {**claims, "repository": repository}) is None
    # A claim that holds a delimiter is encoded, and so is none.
    spaced = identity_of(hostile[0], "x", {**claims, "repository": "a,b c", "workflow_ref": ""})
    assert spaced is not None and "a%2Cb%20c" in spaced.builder
    called = {**claims, "workflow_ref": "evil/app/.github/workflows/warm.yml@refs/heads/main"}
    caller = identity_of(
        "https://token.actions.githubusercontent.com", "x", {**called, "repository": "evil/app"}
    )
    assert caller is not None and caller.builder.startswith("https://github.com/evil/app/")


def test_altered_provenance_is_refused(world: World) -> None:
    _, builder = job_of_main(world)
    made = built(world, origin(None))
    manifest = json.loads(codec.canonical(made.manifest))
    manifest["attestation"]["predicate"]["runDetails"]["builder"]["id"] = builder.builder
    envelope = json.loads(made.envelope)
    envelope["payload"] = base64.b64encode(codec.canonical(manifest)).decode()
    altered = json.dumps(envelope).encode()
    trusted = [world.key.public]
    with pytest.raises(Untrusted, match="does not match"):
        check_envelope(altered, trusted=trusted, expected=None, now=time.time())
    foreign = SigningKey.generate().sign_bytes(codec.canonical(manifest), envelope["payloadType"])
    with pytest.raises(Untrusted, match="is not trusted"):
        check_envelope(foreign, trusted=trusted, expected=None, now=time.time())
    # A true statement about another pack says nothing about this one.
    other = replace(built(world, origin(builder), content=b"evil").manifest, attestation=None)
    transplanted = replace(other, attestation=built(world, origin(builder)).manifest.attestation)
    with pytest.raises(Corrupt, match="not about the pack"):
        check_envelope(world.key.sign(transplanted), trusted=trusted, expected=None, now=time.time())


def test_an_operator_tags_again_what_was_checked_and_a_thief_transplants_nothing(world: World) -> None:
    secret, builder = job_of_main(world)
    made = built(world, origin(builder))
    assert publish(world, secret, made).status_code == 200
    before = made.manifest.statement
    bytes_of = {"bytes_of": f"{before.full_name}@{made.revision}"}

    def again(tag: str = "stable", **changed: Any) -> Publication:
        statement = replace(before, tag=tag, sequence=before.sequence + 1, **changed)
        manifest = replace(made.manifest, statement=statement, provenance=bytes_of)
        return Publication(manifest, world.key.sign(manifest), made.pack)

    assert publish(world, stolen(world), again()).status_code == 200
    refused(publish(world, stolen(world), again(target=Target("bert/other"))), "no job's")
    lane = again(lane=Lane("pr-7"))
    refused(publish(world, stolen(world), lane), "no job's")
    evil = built(world, origin(builder), content=b"evil", tag="evil")
    manifest = replace(evil.manifest, provenance=bytes_of)
    refused(
        publish(world, stolen(world), Publication(manifest, world.key.sign(manifest), evil.pack)), "no job's"
    )


def require(world: World, text: str | None, token: str | None = None) -> httpx.Response:
    return world.call("PUT", "/v1/namespaces/team/require", token or world.admin, json={"require": text})


def test_a_namespace_takes_and_offers_only_what_its_ci_built(world: World) -> None:
    secret, builder = job_of_main(world)
    thief = stolen(world)
    assert publish(world, thief, built(world, origin(None))).status_code == 200
    text = f"builder={world.issuer.url}/org/app/*, ref=refs/heads/main"
    assert require(world, text, thief).status_code == 403
    assert require(world, text).json() == {"require": text}
    # What was published before is withheld, with the reason, at once.
    answer = resolved(world)
    assert answer["revisions"] == []
    assert "requires builder=" in str(answer["rejected"]) and LOCAL_BUILDER in str(answer["rejected"])
    refused(publish(world, thief, built(world, origin(None), name="two")), "requires", LOCAL_BUILDER)
    refused(publish(world, thief, make(world.key, name="two")), "requires", "nothing says who built it")
    assert publish(world, secret, built(world, origin(builder), target="bert/main")).status_code == 200
    [offered] = resolved(world)["revisions"]
    assert WORKFLOW in json.dumps(json.loads(_payload(offered["envelope"])))
    rows = world.call("GET", "/v1/namespaces", world.admin).json()
    assert rows[0]["require"] == text
    world.call("PUT", "/v1/namespaces/team/policy", world.admin, json={"keep_days": 3})
    assert world.call("GET", "/v1/namespaces", world.admin).json()[0]["require"] == text
    require(world, None)
    assert len(resolved(world)["revisions"]) == 2
    audit = world.call("GET", "/v1/audit?action=namespace.require", world.admin).json()["rows"]
    assert [row["details"]["require"] for row in audit] == ["nothing", text]


def test_a_lane_is_not_held_to_the_trunks_requirement_and_does_not_leave_it(world: World) -> None:
    require(world, f"builder={world.issuer.url}/org/app/*, ref=refs/heads/main")
    world.rule(claims={"repository": "org/app"}, lane="pr-{number}")
    secret = world.issued(**{**JOB, **PULL})["secret"]
    pull = identity(world, secret)
    assert publish(world, secret, built(world, origin(pull), lane=Lane("pr-7"))).status_code == 200
    assert len(resolved(world, lane="pr-7")["revisions"]) == 1
    assert resolved(world).get("revisions", []) == []


def test_a_namespaces_requirement_that_could_be_misread_is_refused(world: World) -> None:
    for text in ("main", "builder=*", "builder=https://github.com/*", "ref=refs/heads/main", ""):
        answer = require(world, text)
        assert answer.status_code == 422 and answer.json()["error"]["message"].startswith("require: "), text


def test_a_clients_requirement_refuses_what_a_trusted_key_signed_elsewhere(world: World) -> None:
    _, builder = job_of_main(world)
    requirement = Requirement.parse(f"builder={world.issuer.url}/org/app/*, ref=refs/heads/main")

    def check(made: Publication) -> None:
        Acceptance([world.key.public], require=requirement).accept(made.envelope, None)

    check(built(world, origin(builder)))
    pull = replace(builder, source=builder.source.replace("heads/main", "pull/7"))
    typed = Dependency("checkout", builder.source, {"gitCommit": COMMIT})
    for made, words in (
        (make(world.key), "nothing says who built it"),
        (built(world, origin(None, typed)), LOCAL_BUILDER),
        (built(world, origin(pull)), "refs/pull/7"),
        (built(world, origin(replace(builder, source=""), typed)), "no ref that anybody vouches for"),
    ):
        with pytest.raises(Untrusted) as caught:
            check(made)
        assert words in str(caught.value) and str(caught.value).isprintable()


def test_secrets_in_urls_and_variables_are_in_no_statement(tmp_path: Path, world: World) -> None:
    git = tmp_path / "repository" / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs/heads/main").write_text(f"{COMMIT}\n")
    spec = tmp_path / "repository" / "warm.toml"
    spec.write_text('name = "team/bert"\n')
    environ = {
        "CACHESVC_TOKEN": TOKEN,
        "GITHUB_SHA": COMMIT,
        "GITHUB_SERVER_URL": f"https://user:{PASSWORD}@github.com",
        "GITHUB_REPOSITORY": f"org/app?token={TOKEN}",
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
    }
    remotes = (
        f"https://x-access-token:{TOKEN}@github.com/org/app.git",
        f"https://github.com/org/app?private_token={TOKEN}#{PASSWORD}",
        f"ssh://git:{PASSWORD}@github.com:22/org/app",
        f"{TOKEN}@github.com:org/app.git",
        f"https://{TOKEN}@github.com/org/app",
        f"/home/{TOKEN}/app",
        f"ext::sh -c {TOKEN}",
    )
    for remote in remotes:
        (git / "config").write_text(f'[remote "origin"]\n\turl = {remote}\n')
        text = codec.canonical(built(world, BuildOrigin.of(spec, environ)).manifest).decode()
        assert TOKEN not in text and PASSWORD not in text, remote
        assert COMMIT in text and "warm.toml" in text
    outside = tmp_path / "elsewhere" / "warm.toml"
    outside.parent.mkdir()
    outside.write_text("")
    text = codec.canonical(built(world, BuildOrigin.of(outside, environ)).manifest).decode()
    assert TOKEN not in text and PASSWORD not in text and COMMIT in text
    environ["GITHUB_SHA"] = TOKEN
    text = codec.canonical(built(world, BuildOrigin.of(outside, environ)).manifest).decode()
    assert TOKEN not in text


def test_a_repositorys_settings_run_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker, programs = tmp_path / "marker", tmp_path / "programs"
    programs.mkdir()
    (programs / "git").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    git = tmp_path / ".git"
    git.mkdir()
    (git / "HEAD").write_text(COMMIT)
    (git / "config").write_text(f"[core]\n\tfsmonitor = touch {marker}\n")
    spec = tmp_path / "warm.toml"
    spec.write_text("")
    names = {one.name: one for one in BuildOrigin.of(spec, {}).dependencies}
    assert names["checkout"].commit == COMMIT and not marker.exists()


def _payload(envelope: str) -> bytes:
    return base64.b64decode(json.loads(envelope)["payload"])
