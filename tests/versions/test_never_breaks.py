"""Test that a service runs on every version of torch as it runs without cachesvc, whether cachesvc refuses
that version, supports it, or uses entries there that `warm` has proven on it."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import trap
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment import releases
from cachesvc_client.environment.detect import detect
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target
from tests.e2e.harness import PROGRAMS, WARMED
from tests.made_torch import make_torch

from .environments import python_of
from .services import HERE, ServiceResult, run_command, serve

OLD = ("2.4.1", "2.6.0", "2.7.1")
"""Versions for which no hook was ever made."""


def assert_compiled(service: ServiceResult, *says: str) -> None:
    """Assert that the service compiled and worked, and that one line says why it restored nothing."""
    assert service.code == 0, service.err[-4000:]
    assert service.answer.get("right"), service.answer
    assert service.answer["status"] == "failed"
    assert "Traceback" not in service.err
    [line] = service.log_lines
    for text in ("not restored, this process compiles", *says):
        assert text in line, line


def assert_untouched(service: ServiceResult, *says: str) -> None:
    """Assert that the service worked, and that no hook was in it."""
    assert_compiled(service, *says)
    assert service.answer["ours"] == [] == service.answer["ours after it"]
    assert service.answer["pending after it"] == []


@pytest.mark.parametrize("version", OLD)
def test_a_refused_version_has_no_hook_in_it(version: str, tmp_path: Path) -> None:
    service = serve(python_of(version), tmp_path, "attach-first")
    assert_untouched(service, f"torch {version}", "older than 2.8")
    assert service.answer["pending"] == [], "no hook waits for the import of torch"


def test_strict_makes_a_refusal_an_error_of_the_first_compile(tmp_path: Path) -> None:
    service = serve(python_of("2.7.1"), tmp_path, "attach-first", "wait", CACHESVC_STRICT="1")
    assert service.code == 0, service.err[-4000:]
    assert service.answer["raised by wait"] == "Unsupported"
    assert "Unsupported: not usable: torch 2.7.1" in service.answer["raised by the compile"]
    assert service.answer["ours"] == ["torch._inductor.compile_fx.compile_fx"]


SPEC = """\
name = "team/x"
[[target]]
id = "x"
script = "script.py"
"""


def write_script_spec(place: Path) -> None:
    """Write a spec whose script must not run."""
    (place / "warm.toml").write_text(SPEC)
    (place / "script.py").write_text("raise SystemExit('nothing runs on a refused version')\n")


def test_warm_and_doctor_refuse_what_a_service_refuses(tmp_path: Path) -> None:
    write_script_spec(tmp_path)
    python = python_of("2.7.1")
    warmed = run_command(python, tmp_path, "warm", "warm.toml", "--out", "out")
    assert warmed.returncode == 8, warmed.stdout + warmed.stderr
    assert warmed.stderr.splitlines()[-1].startswith("error: not usable: torch 2.7.1")
    assert "nothing runs" not in warmed.stdout + warmed.stderr
    doctor = run_command(python, tmp_path, "doctor")
    assert doctor.returncode == 1
    assert sum("not usable: torch 2.7.1" in line for line in doctor.stdout.splitlines()) == 1


# A torch that no release of cachesvc knows ------------------------------------------------------

FUTURE = "9.9.0"
NO_OPERATORS = {
    # The details' attribute is dropped before the key is made of them: every name is there.
    "_functorch/_aot_autograd/autograd_cache.py": (
        "            pickler = AOTAutogradCachePickler(gm)\n",
        '            details.__dict__.pop("python_operators", None)\n'
        "            pickler = AOTAutogradCachePickler(gm)\n",
    )
}


def made(site: Path, version: str = FUTURE, changes: Any = None) -> dict[str, str]:
    """Make a torch, and return the variable with which a process imports it."""
    make_torch(site, version, changes)
    return {"PYTHONPATH": os.pathsep.join(map(str, (site, PROGRAMS, HERE)))}


@dataclass(frozen=True)
class Proven:
    """Holds an entry that `warm` proved on a torch that nobody knows. ``variables``: of a process that has
    that torch and trusts the builder."""

    bundle: Path
    key: SigningKey
    variables: dict[str, str]


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Proven:
    """Return what `warm` published on a torch that no release knows."""
    place = tmp_path_factory.mktemp("builder")
    key, variables = SigningKey.generate(), made(place / "site")
    words = ("warm", str(HERE / "warm.toml"), "--out", "out", "--signing-key-env", "SIGNING_KEY")
    warmed = run_command(sys.executable, place, *words, SIGNING_KEY=key.text, **variables)
    assert warmed.returncode == 0, warmed.stdout + warmed.stderr
    [bundle] = (place / "out").iterdir()
    return Proven(bundle, key, {**variables, "CACHESVC_TRUSTED_KEYS": str(key.public)})


@pytest.mark.compiles
@pytest.mark.timeout(900)
def test_a_proven_entry_is_restored_on_a_torch_that_nobody_knows(proven: Proven, tmp_path: Path) -> None:
    variables = {**proven.variables, "SERVICE_BUNDLE": str(proven.bundle), "CACHESVC_LOG": "info"}
    path = trap(tmp_path / "trap")
    service = serve(sys.executable, tmp_path, "attach-first", "wait", PATH=str(path), **variables)
    assert service.code == 0, service.err[-4000:]
    assert service.answer["right"] and service.answer["status"] == "restored", service.err[-4000:]
    assert (service.answer["state"], service.answer["compilations"]) == ("hit", 0), service.answer
    assert not (tmp_path / "trap" / "called").exists(), "a compiler was started"
    assert any("restored in" in line and "proven by this entry" in line for line in service.log_lines)
    doctor = run_command(sys.executable, tmp_path, "doctor", **variables)
    [line] = [line for line in doctor.stdout.splitlines() if "torch 9.9.0" in line]
    assert line.startswith("warn") and "entries that cachesvc warm has proven on it are used" in line
    verified = run_command(sys.executable, tmp_path, "verify", str(proven.bundle), **variables)
    assert re.search(r"proven +on torch 9\.9\.0, \d+ hooks, cachesvc\.conformance/1", verified.stdout)


def unproven_entry(place: Path, torch: str) -> dict[str, str]:
    """Write an entry for a version of torch, as a builder made it that proves nothing. Return the variables
    of a process that restores it."""
    key, bundle = SigningKey.generate(), place / "entry.cachesvc"
    path = "fxgraph/ab/f" + "a" * 30 + "/" + "b" * 30
    draft = Draft(
        name=Name.parse("team/x"),
        target=Target("x"),
        fingerprint={**detect({**os.environ, **WARMED, "OMP_NUM_THREADS": "2"}), "torch": torch},
        workload=Workload(script=Digest.of(b"x")),
        scopes=("host",),
    )
    build_bundle([SourceFile("inductor", path, b"graph", 0o644)], draft, key, bundle)
    return {"CACHESVC_TRUSTED_KEYS": str(key.public), "SERVICE_BUNDLE": str(bundle)}


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        (FUTURE, "not proven on torch 9.9.0: its manifest has no proof"),
        ("2.13.0+cpu", "torch: here 9.9.0, entry 2.13.0+cpu"),
    ],
)
def test_an_entry_without_a_proof_for_this_torch_is_refused(torch: str, says: str, tmp_path: Path) -> None:
    variables = {**made(tmp_path / "site"), **unproven_entry(tmp_path, torch)}
    service = serve(sys.executable, tmp_path, "attach-first", **variables)
    assert_compiled(service, says)


@pytest.mark.parametrize("order", ["attach-first", "torch-first"])
def test_hooks_are_removed_where_a_needed_one_is_missing(order: str, tmp_path: Path) -> None:
    """The sources say it on the session's thread, when the other hooks are in place already."""
    renamed = {"_inductor/cpp_builder.py": ("run_compile_cmd(", "run_the_command(")}
    variables = made(tmp_path / "site", changes=renamed)
    service = serve(sys.executable, tmp_path, order, **variables)
    hook = "hook torch._inductor.cpp_builder.run_compile_cmd is missing in torch 9.9.0"
    assert_untouched(service, f"not usable: {hook}")
    assert service.answer.get("changed", []) == []
    write_script_spec(tmp_path)
    warmed = run_command(sys.executable, tmp_path, "warm", "warm.toml", "--out", "out", **variables)
    assert (warmed.returncode, warmed.stdout) == (8, "")
    assert hook in warmed.stderr.splitlines()[-1]


@pytest.mark.compiles
@pytest.mark.timeout(900)
def test_a_torch_that_works_otherwise_fails_the_probe(tmp_path: Path) -> None:
    """It has every name, and what a hook puts into the key is lost."""
    write_script_spec(tmp_path)
    variables = made(tmp_path / "site", FUTURE, NO_OPERATORS)
    warmed = run_command(sys.executable, tmp_path, "warm", "warm.toml", "--out", "out", **variables)
    assert (warmed.returncode, warmed.stdout) == (8, ""), warmed.stdout + warmed.stderr
    line = warmed.stderr.splitlines()[-1]
    says = "nothing is published, since the conformance probe failed: the code of operators is in the key: "
    assert f"error: torch {FUTURE}: {says}" in line
    assert list((tmp_path / "out").iterdir()) == []
    assert "eager" not in warmed.stderr, "the target was not run"


def test_two_versions_in_one_job_compile_and_each_rank_says_why_in_one_line(tmp_path: Path) -> None:
    entry = unproven_entry(tmp_path, releases.torch()[0] or "")
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    job |= {"CACHESVC_STORE": str(tmp_path / "store"), "CACHESVC_DEADLINE": "60"}

    def rank(number: int, variables: dict[str, str]) -> ServiceResult:
        mine = {"RANK": str(number), "LOCAL_RANK": str(number), **job, **entry, **variables}
        return serve(sys.executable, tmp_path / f"rank-{number}", "attach-first", "wait", **mine)

    future = made(tmp_path / "site")
    here = {"PYTHONPATH": os.pathsep.join(map(str, (PROGRAMS, HERE)))}
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(rank, (0, 1), (here, future))
    differs = f"torch: here 9.9.0, entry {releases.torch()[0]}"
    assert_compiled(first, "the ranks of this job install all or nothing: rank 1 of this node", differs)
    assert_compiled(second, differs)


def own_results(place: Path) -> list[Path]:
    """Return what a process kept for the next start of its node."""
    return list((place / "home" / ".cache" / "cachesvc" / "v1" / "own").glob("*"))


BAD_VERSIONS = {
    "2.16.0.dev20261101+cpu": "not proven on torch 2.16.0.dev20261101+cpu",
    "main": "not usable: 'main' is no version of torch",
    "2.13.0+acme.5": "not proven on torch 2.13.0+acme.5",
    "2.16.0a0+gitabc": "not proven on torch 2.16.0a0+gitabc",
}


@pytest.mark.parametrize(
    "version",
    [pytest.param(name, marks=[pytest.mark.long] * (place > 1)) for place, name in enumerate(BAD_VERSIONS)],
)
def test_a_torch_of_another_version_compiles_and_says_why_in_one_line(version: str, tmp_path: Path) -> None:
    variables = {**made(tmp_path / "site", version), **unproven_entry(tmp_path, version)}
    service = serve(sys.executable, tmp_path, "attach-first", **variables)
    assert_compiled(service, BAD_VERSIONS[version])
    assert own_results(tmp_path) == [], "nobody has proven what was compiled here"


def test_a_variable_that_does_nothing_any_more_is_one_line(tmp_path: Path) -> None:
    service = serve(sys.executable, tmp_path, "attach-first", CACHESVC_UNTESTED="1")
    assert service.code == 0 and service.answer["right"], service.err[-4000:]
    assert own_results(tmp_path), "a supported torch keeps what was compiled here"
    lines = [line for line in service.log_lines if "CACHESVC_UNTESTED" in line]
    assert len(lines) == 1 and "does nothing any more" in lines[0], service.err
