"""Require a builder of a namespace's trunk, over both databases: what a resolve and a replica offer, and what
a reader downloads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from registry_inside import ROOT, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Publication, make

from cachesvc.domain.access import Role, Token
from cachesvc.hot.memory import MemoryHot
from cachesvc.registry import download
from cachesvc.registry.trust import provenance
from cachesvc.schema.namespaces import RequireRequest
from cachesvc.warm.provenance import BuildOrigin
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound, Untrusted
from cachesvc_client.wire.manifest.provenance import BuilderIdentity, Dependency
from cachesvc_client.wire.names import Name, Namespace, ShortName
from cachesvc_client.wire.requests.protocol import ResolveRequest

WORKFLOW = "https://github.com/org/app/.github/workflows/warm.yml@refs/heads/main"
BUILDER = BuilderIdentity(WORKFLOW, "git+https://github.com/org/app@refs/heads/main")
REQUIRED = "builder=https://github.com/org/app/*, ref=refs/heads/main"
JOB = Token("t-job", "warm on main", Role.write, "team", builder=BUILDER)
BY_HAND = Token("t-hand", "a laptop", Role.write, "team")
READER = Token("t-reader", "cluster-7", Role.report, "team")


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def built(
    reg: Inside, builder: BuilderIdentity | None, checkout: Dependency | None = None, **made: object
) -> Publication:
    """Return a revision whose provenance names ``builder``, and the checkout that the builder found."""
    plain = make(reg.key, **made)
    statement = plain.manifest.statement
    origin = BuildOrigin("warm.toml", Digest.of(b"spec"), (checkout,) if checkout else (), builder)
    name = Name(statement.namespace, statement.name, statement.tag)
    facts = origin.provenance(name, statement.lane, statement.target, FINGERPRINT, ("host",))
    manifest = replace(plain.manifest, attestation=origin.statement(facts, plain.manifest.pack))
    return Publication(manifest, reg.key.sign(manifest), plain.pack)


def require(reg: Inside, text: str | None) -> None:
    provenance.set_requirement(reg.registry, ROOT, Namespace("team"), RequireRequest(text))


def test_a_resolve_offers_what_the_required_builder_built_and_names_what_it_withholds(reg: Inside) -> None:
    ours, other, lane = (
        built(reg, BUILDER, target="ours"),
        built(reg, None, target="by-hand"),
        built(reg, None, target="by-hand", lane="pr-1"),
    )
    reg.bundle(ours, token=JOB)
    for made in (other, lane):
        reg.bundle(made, token=BY_HAND)
    assert {row.revision for row in reg.resolve().revisions} == {ours.revision, other.revision}
    require(reg, REQUIRED)
    answer = reg.resolve()
    assert [row.revision for row in answer.revisions] == [ours.revision]
    [rejected] = answer.rejected
    assert rejected.withheld and rejected.entry == other.manifest.entry
    assert f"the namespace requires {REQUIRED}" in rejected.differences[0].mine
    in_lane = {row.revision for row in reg.resolve(lane="pr-1").revisions}
    assert in_lane == {ours.revision, lane.revision}, "a lane is not held to it"
    with pytest.raises(NotFound, match=r"is not offered: .*the namespace requires"):
        download.find_pack(reg.registry, READER, other.revision)
    assert download.find_pack(reg.registry, READER, ours.revision).digest == ours.manifest.pack.digest
    with pytest.raises(Untrusted, match="namespace team requires"):
        reg.bundle(built(reg, None, target="later"), token=BY_HAND)
    require(reg, None)
    assert len(reg.resolve().revisions) == 2


def test_a_requirement_reaches_a_replica_without_a_shared_store_within_5_seconds(reg: Inside) -> None:
    replica = replace(reg.registry, hot=MemoryHot(clock=reg.clock))
    request = ResolveRequest(Namespace("team"), ShortName("bert"), FINGERPRINT)
    made = built(reg, None)
    reg.bundle(made, token=BY_HAND)
    assert made.revision.encode() in reg.answer(request, registry=replica)
    require(reg, REQUIRED)
    assert b'"revisions":[]' in reg.answer(request)
    reg.clock.now += 5
    answer = reg.answer(request, registry=replica)
    assert b'"revisions":[]' in answer and b"the namespace requires" in answer
    assert codec.parse_json(answer, limit=len(answer), what="the answer")["rejected"]


def test_a_namespace_refuses_what_was_built_from_changed_files_from_then_on(reg: Inside) -> None:
    checkouts = {
        tree: Dependency(
            "checkout", "git+https://github.com/org/app", {"gitCommit": "1" * 40}, {"tree": tree}
        )
        for tree in ("clean", "changed", "unknown")
    }
    before = built(reg, BUILDER, checkouts["changed"], target="before")
    reg.bundle(before, token=JOB)
    require(reg, f"{REQUIRED}, tree=clean")
    for tree in ("changed", "unknown", None):
        made = built(reg, BUILDER, checkouts.get(tree or ""), target=f"{tree}")
        with pytest.raises(Untrusted, match="tree=clean, and it was built from "):
            reg.bundle(made, token=JOB)
    clean = built(reg, BUILDER, checkouts["clean"], target="clean")
    reg.bundle(clean, token=JOB)
    offered = {row.revision for row in reg.resolve().revisions}
    assert offered == {before.revision, clean.revision}, "what was there is held to the builder alone"
