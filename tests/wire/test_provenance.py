"""A statement is in-toto's and SLSA's, comes back as it was, and is refused where it is malformed."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest

from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.provenance import BuilderIdentity, Dependency, Provenance, read_statement

GOLDEN = Path(__file__).parent.parent / "golden"
PACK = Digest.of(b"pack")
BUILD = Provenance(
    builder="https://github.com/org/app/.github/workflows/warm.yml@refs/heads/main",
    parameters={"name": "team/bert", "tag": "latest", "target": "bert", "spec": {"name": "warm.toml"}},
    environment={"torch": "2.13.0"},
    dependencies=(
        Dependency("source", "git+https://github.com/org/app@refs/heads/main", {"gitCommit": "a" * 40}),
        Dependency("torch", "pkg:pypi/torch@2.13.0%2Bcpu"),
        Dependency("spec", digest={"sha256": "b" * 64}),
    ),
    invocation="https://github.com/org/app/actions/runs/1/attempts/1",
    started="2026-01-01T00:00:00Z",
    finished="2026-01-01T00:01:00Z",
    version="0.1.0",
)


def test_a_statement_has_the_form_of_in_toto_and_slsa():
    statement = BUILD.statement("team/bert:latest bert", PACK)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [{"name": "team/bert:latest bert", "digest": {"sha256": PACK.hex}}]
    definition, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    assert set(definition) == {
        "buildType",
        "externalParameters",
        "internalParameters",
        "resolvedDependencies",
    }
    assert all(row.get("uri") or row.get("digest") for row in definition["resolvedDependencies"])
    assert run["builder"]["id"] == BUILD.builder
    assert set(run["metadata"]) == {"invocationId", "startedOn", "finishedOn"}


def test_a_statement_comes_back_as_it_was():
    statement = codec.parse_json(codec.canonical(BUILD.statement("x", PACK)), limit=1 << 20, what="statement")
    assert read_statement(statement, PACK) == BUILD
    assert (BUILD.vouched, BUILD.ref, BUILD.source.commit) == (True, "refs/heads/main", "a" * 40)
    local = replace(BUILD, builder="cachesvc:local")
    assert (local.vouched, local.ref) == (False, "")


def _altered(place, value):
    statement = copy.deepcopy(BUILD.statement("x", PACK))
    inner = statement
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return statement


DEFINITION = ("predicate", "buildDefinition")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("subject",), []),
        (("subject",), [{"digest": {"sha256": "0" * 64}}]),
        (("subject",), [{"digest": {"sha256": PACK.hex}}, {"digest": {"sha256": "0" * 64}}]),
        (("subject",), [{"digest": {"sha256": PACK.hex, "md5": "x"}}]),
        (("subject",), ["x"]),
        (("predicate",), None),
        (("predicate", "runDetails"), []),
        (("predicate", "runDetails", "builder", "id"), ""),
        (("predicate", "runDetails", "builder", "id"), 7),
        (("predicate", "runDetails", "builder", "id"), "https://x/a b"),
        (("predicate", "runDetails", "builder", "id"), "https://github.com/org/app/../../evil"),
        (("predicate", "runDetails", "builder", "id"), "https://github.com/" + "x" * 2000),
        ((*DEFINITION, "resolvedDependencies"), {}),
        ((*DEFINITION, "resolvedDependencies"), [{"name": "source"}, {"name": "source"}]),
        ((*DEFINITION, "resolvedDependencies"), [{"name": "x"}] * 201),
        ((*DEFINITION, "resolvedDependencies"), [{"name": "source", "digest": {"gitCommit": 7}}]),
        ((*DEFINITION, "externalParameters"), "x"),
    ],
)
def test_a_malformed_statement_is_refused(place, value):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each has its own message
        read_statement(_altered(place, value), PACK)
    assert str(caught.value)


@pytest.mark.parametrize("name", ["_type", "predicateType"])
def test_a_statement_of_another_type_says_nothing_here(name):
    assert read_statement(_altered((name,), "https://example/v9"), PACK) is None


@pytest.mark.parametrize("builder", ["", "cachesvc:local", "no uri", "https://x/a,b", "https://x/a\nb"])
def test_an_identity_is_a_uri(builder):
    with pytest.raises(ValueError, match="builder"):
        BuilderIdentity(builder)


def test_a_statement_of_version_1_is_read_for_ever():
    golden = (GOLDEN / "attestation-1.json").read_bytes()
    statement = codec.parse_json(golden, limit=1 << 20, what="statement")
    assert read_statement(statement, PACK) == BUILD
    assert codec.canonical(BUILD.statement("team/bert:latest bert", PACK)) == golden
