"""Test that the conformance probe runs once for each environment that is not supported.

The probe's own process is not started here: tests/versions/test_never_breaks.py starts it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachesvc.warm.probe import prove_environment
from cachesvc.warm.spec.plan import Job, plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc.warm.worker.phase import PhaseRequest, PhaseResult
from cachesvc.warm.worker.proven_environment import ProvenEnvironment, judge_environment
from cachesvc_client.config.settings import Config
from cachesvc_client.environment import releases
from cachesvc_client.wire.errors import Unsupported
from tests.made_torch import make_torch

SPEC = 'name = "a/b"\n[[target]]\nid = "x"\nfactory = "m:f"\nenv = {CI = "1"}\ntimeout = 5\n'


class Probes:
    """Stands for the launcher of processes: counts the probes, and answers with their failures."""

    def __init__(self, **failures: str) -> None:
        self.failures = failures
        self.requests: list[PhaseRequest] = []

    def run(self, request: PhaseRequest, folder: Path, extra: dict[str, str]) -> PhaseResult:
        assert folder.is_dir() and extra
        self.requests.append(request)
        return PhaseResult("probe", probe=self.failures)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return plan(parse_spec(SPEC, tmp_path / "warm.toml"))[0]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Config(store=tmp_path / "store")


def prove(job: Job, config: Config, launcher: Any) -> ProvenEnvironment:
    environment = judge_environment()
    prove_environment(environment, job, launcher, config)
    return environment


def test_a_probe_that_passed_is_not_repeated(job: Job, config: Config) -> None:
    first, second = Probes(), Probes()
    assert prove(job, config, first) == prove(job, config, second)
    assert (len(first.requests), len(second.requests)) == (1, 0)
    [request] = first.requests
    spec = request.job.spec
    assert (request.phase, request.ranks, spec.env, spec.timeout) == ("probe", 0, {}, 600.0)


def test_a_probe_that_failed_is_repeated_and_names_its_checks(job: Job, config: Config) -> None:
    failing, passing = Probes(one="is broken", two="too"), Probes()
    with pytest.raises(Unsupported, match="the conformance probe failed: one: is broken; two: too"):
        prove(job, config, failing)
    prove(job, config, passing)
    assert len(passing.requests) == 1


def test_a_mark_of_another_node_does_not_count(job: Job, config: Config, tmp_path: Path) -> None:
    """A store may come from a cache that others filled."""
    prove(job, config, Probes())
    [mark] = (tmp_path / "store" / "v1" / "probes").iterdir()
    signed = mark.read_bytes()
    for forged in (b"", b"1" * 64, signed[:-1] + bytes([signed[-1] ^ 1])):
        mark.write_bytes(forged)
        probes = Probes()
        prove(job, config, probes)
        assert len(probes.requests) == 1
    (tmp_path / "config" / "cachesvc" / "node.key").unlink()
    probes = Probes()
    prove(job, config, probes)
    assert len(probes.requests) == 1


def test_an_edited_torch_is_probed_again(
    job: Job, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, real = (
        make_torch(tmp_path / "site", "2.13.0", {"library.py": ("def impl(", "def impl(")}),
        releases.package,
    )
    monkeypatch.setattr(releases, "package", lambda name: torch if name == "torch" else real(name))
    prove(job, config, Probes())
    os.utime(torch / "library.py", (1, 1))
    probes = Probes()
    prove(job, config, probes)
    assert len(probes.requests) == 1


def test_a_torch_that_is_not_usable_is_refused_before_the_probe(
    job: Job, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, real = make_torch(tmp_path / "site", "2.7.1"), releases.package
    monkeypatch.setattr(releases, "package", lambda name: torch if name == "torch" else real(name))
    probes = Probes()
    with pytest.raises(Unsupported, match=r"not usable: torch 2\.7\.1 is older than 2\.8"):
        prove(job, config, probes)
    assert probes.requests == []


def test_an_entry_of_a_supported_release_needs_no_proof() -> None:
    here = judge_environment()
    assert here.support.state == "supported"
    assert not here.needs_probe and here.proof({"inductor"}) is None


def test_a_proof_names_the_hooks_that_the_kinds_of_an_entry_need() -> None:
    supported = judge_environment()
    here = replace(supported, support=replace(supported.support, state="by proof"))
    proof = here.proof({"inductor"})
    assert proof.torch == here.fingerprint["torch"] and proof.triton == here.fingerprint.get("triton")
    assert "torch._inductor.codecache.CppCodeCache.load_async" in proof.hooks
    assert not any("cpp_extension" in hook for hook in proof.hooks)
    assert any("cpp_extension" in hook for hook in here.proof({"torch_extensions"}).hooks)
    lost = here.present - {"torch.utils.cpp_extension._jit_compile"}
    unknown = replace(here, present=lost)
    assert unknown.proof({"inductor"}).hooks == proof.hooks
    with pytest.raises(
        Unsupported, match=r"hook torch\.utils\.cpp_extension\._jit_compile is missing in torch"
    ):
        unknown.proof({"torch_extensions"})
