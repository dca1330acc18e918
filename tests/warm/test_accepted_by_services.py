"""Test that a run of `warm` takes for fresh only what services would accept, by the pinned root and by
CACHESVC_REQUIRE; the registry is real, and nothing compiles."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from registry_making import FINGERPRINT, Server, make, ok

from cachesvc.warm.context import RegistryAccess, TargetContext, WarmContext
from cachesvc.warm.lookup import check_published, find_published
from cachesvc.warm.spec.plan import plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc.warm.worker.phase import PhaseRequest, PhaseResult
from cachesvc.warm.worker.proven_environment import ProvenEnvironment
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.environment.support import Support
from cachesvc_client.http.registry import Remote
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.trust_root.registry_metadata import refresh_policy
from cachesvc_client.wire.errors import Untrusted
from cachesvc_client.wire.manifest.provenance import Provenance
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.manifest.requirement import Requirement
from cachesvc_client.wire.names import Name

from .test_run import Answer, Scripted

LOCAL = Requirement.parse("builder=cachesvc:local")
CI = Requirement.parse("builder=https://github.com/org/*")
TARGET = "x/default"
YEAR = 365 * 86400.0


class Recording(Scripted):
    """Records the variables that the replay of a check gets."""

    def run(self, request: PhaseRequest, folder: Path, extra, *, keep: bool = False) -> PhaseResult:
        self.variables = dict(extra)
        return super().run(request, folder, extra, keep=keep)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("registry") / "data").running() as running:
        yield running


@pytest.fixture(scope="module")
def root(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the pinned root."""
    return server.pin_root(tmp_path_factory.mktemp("home"))


@pytest.fixture
def team() -> str:
    """Return a namespace of the test's own."""
    return "n" + os.urandom(6).hex()


@pytest.fixture
def target(server: Server, team: str, tmp_path: Path) -> Iterator[Callable[..., TargetContext]]:
    """Return a function that describes the target ``x`` of ``team/model`` in a run with some acceptance."""
    name = Name.parse(f"{team}/model")
    spec = f'name = "{name}"\n[[target]]\nid = "x"\nfactory = "m:f"\n'
    (job,) = plan(parse_spec(spec, tmp_path / "warm.toml"))
    eager = PhaseResult("eager", fingerprint=FINGERPRINT)
    with Remote(server.url, server.token) as remote:

        def describe(acceptance: Acceptance, root: Path | None = None) -> TargetContext:
            registry = RegistryAccess(remote, acceptance, root)
            warm = WarmContext(name, Recording(Answer()), lambda _job, _step: None, registry, task="check")
            return TargetContext(job, warm, tmp_path, eager, Workload())

        yield describe


def publish(server: Server, key: SigningKey, team: str, *, builder: str | None = None) -> None:
    """Publish what the target is, with the statement of a builder if one is named."""
    facts = {"namespace": team, "name": "model", "target": TARGET, "workload": Workload()}
    made = make(key, **facts)
    if builder is not None:
        statement = Provenance(builder, {}).statement("model", made.manifest.pack.digest)
        made = make(key, **facts, attestation=statement)
    ok(server.api().publish(made))


def test_another_builder_than_the_required_one_is_cold(server: Server, team: str, target) -> None:
    publish(server, server.key, team, builder="cachesvc:local")
    trusted = Acceptance((server.key.public,))
    for require in (None, LOCAL):
        assert find_published(target(replace(trusted, require=require))).manifest is not None
    context = target(replace(trusted, require=CI))
    lookup = find_published(context)
    assert lookup.manifest is None
    for words in (
        "services refuse it: ",
        "it was built by cachesvc:local",
        f"CACHESVC_REQUIRE asks for {CI}",
    ):
        assert words in lookup.reason, lookup.reason
    outcome = check_published(context, lookup)
    assert (outcome.status, outcome.reasons) == ("cold", (lookup.reason,))
    assert context.warm.launcher.phases == [], "a cold target is not replayed"


def test_what_the_namespace_requires_is_cold_with_its_reason(server: Server, team: str, target) -> None:
    publish(server, server.key, team, builder="cachesvc:local")
    ok(server.api().http.put(f"/v1/namespaces/{team}/require", json={"require": str(CI)}))
    lookup = find_published(target(Acceptance((server.key.public,))))
    assert lookup.manifest is None and "the registry withholds it" in lookup.reason, lookup.reason
    assert f"it was built by cachesvc:local; the namespace requires {CI}" in lookup.reason


def test_what_is_older_than_services_accept_is_cold(server: Server, team: str, target) -> None:
    old = make(
        server.key,
        namespace=team,
        name="model",
        target=TARGET,
        workload=Workload(),
        sequence=1_700_000_000_000,
    )
    ok(server.api().publish(old))
    trusted = Acceptance((server.key.public,))
    assert find_published(target(replace(trusted, max_age=20 * YEAR))).manifest is not None
    assert "that count by default" in find_published(target(trusted)).reason
    assert "of CACHESVC_MAX_AGE" in find_published(target(replace(trusted, max_age=YEAR / 4))).reason


def test_what_will_soon_be_too_old_is_built_before_services_refuse_it(
    server: Server, team: str, target
) -> None:
    facts = {"namespace": team, "name": "model", "target": TARGET, "workload": Workload()}
    signed = int((time.time() - 0.95 * YEAR) * 1000)
    ok(server.api().publish(make(server.key, sequence=signed, **facts)))
    trusted = Acceptance((server.key.public,))
    assert "soon be too old" in find_published(target(trusted)).reason
    assert find_published(target(replace(trusted, max_age=2 * YEAR))).manifest is not None


def test_what_is_not_proven_on_this_torch_is_cold(server: Server, team: str, target) -> None:
    publish(server, server.key, team)
    context = target(Acceptance((server.key.public,)))
    for state, found in (("supported", True), ("by proof", False)):
        here = ProvenEnvironment(FINGERPRINT, Support(state, ""), frozenset())
        lookup = find_published(replace(context, warm=replace(context.warm, environment=here)))
        assert (lookup.manifest is not None) == found
    assert "services refuse it: " in lookup.reason and "its manifest has no proof" in lookup.reason


def test_a_signer_that_the_root_does_not_name_is_cold(
    server: Server, root: Path, team: str, target, tmp_path: Path
) -> None:
    def pinned() -> Acceptance:
        with Remote(server.url, server.token) as remote:
            return Acceptance((), refresh_policy(root, tmp_path / "trust", remote)[0])

    before, key = pinned(), SigningKey.generate()
    ok(server.api().http.post("/v1/signers", json={"namespace": team, "key": key.public}))
    publish(server, key, team)
    lookup = find_published(target(before))
    assert lookup.manifest is None and f"services refuse what {team}/model:latest has" in lookup.reason
    assert f"signed by key {key.public.keyid}, which is not trusted" in lookup.reason, lookup.reason
    context = target(pinned(), root)
    outcome = check_published(context, find_published(context))
    assert (outcome.status, context.warm.launcher.phases) == ("warm", ["replay"]), outcome
    variables = context.warm.launcher.variables
    assert variables["CACHESVC_TRUST_ROOT"] == str(root) and "CACHESVC_TRUSTED_KEYS" not in variables
    with pytest.raises(Untrusted, match="not trusted"):
        find_published(target(Acceptance((SigningKey.generate().public,))))


def test_the_replay_of_a_check_accepts_what_the_run_accepts(server: Server, team: str, target) -> None:
    publish(server, server.key, team, builder="cachesvc:local")
    accepted = Acceptance((server.key.public,), max_age=YEAR, require=LOCAL)
    context = target(accepted)
    assert check_published(context, find_published(context)).status == "warm"
    variables = context.warm.launcher.variables
    config = Config.read({**variables, "HOME": "/nonexistent"})
    assert (config.require, config.max_age, config.trust_root) == (LOCAL, YEAR, None)
    assert [key.key for key in config.trusted_keys] == [server.key.public]
