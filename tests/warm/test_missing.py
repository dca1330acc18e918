"""Test what ``warm --missing`` plans and builds, from what services reported to a real registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachesvc.cli.warm_run import find_missing
from cachesvc.schema.namespaces import Policy
from cachesvc.schema.wanted import WantedAnswer, WantedTarget
from cachesvc.warm.missing import plan_missing
from cachesvc.warm.spec.plan import plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc_client.environment.detect import detect
from cachesvc_client.environment.march import for_level
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import Facts
from cachesvc_client.wire.names import Name, Namespace, ShortName, Tag, Target
from cachesvc_client.wire.requests.reports import ColdName, ColdStart, KindWork, ReportRequest

from .conftest import TINY, command

SPEC = """\
name = "team/missing"
[defaults]
device = "cpu"
runs = 2
paths = ["{tiny}"]
[defaults.env]
OMP_NUM_THREADS = "1"
TORCHINDUCTOR_VEC_ISA_OK = "0"
TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS = "0"
[[target]]
id = "tiny"
factory = "models:tiny"
inputs = {{a = {{x = {{shape = [4, 8]}}}}}}
[[target]]
id = "other"
factory = "models:tiny"
inputs = {{a = {{x = {{shape = [4, 8]}}}}}}
"""
HERE: Facts = {"schema": 1, "torch": "2.13.0+cpu", "python_abi": "cpython-311", "cpu_isa": "avx2"}
GPU: Facts = {**HERE, "gpu": "NVIDIA H200", "compute_capability": "9.0", "cuda": "13.0"}


def row(
    target: str | None, fingerprint: Facts, starts: int = 1, spent: float = 10.0, **more: Any
) -> WantedTarget:
    return WantedTarget(
        *(Namespace("team"), ShortName("missing"), Tag("latest")),
        Digest.of(json.dumps(fingerprint).encode()),
        starts,
        spent,
        last_seen=1,
        target=Target(target) if target else None,
        facts={name: str(fingerprint[name]) for name in ("torch", "gpu", "cpu_isa") if name in fingerprint},
        fingerprint=fingerprint,
        **more,
    )


def jobs(tmp_path: Path, device: str = "cpu"):
    text = SPEC.format(tiny=TINY).replace('device = "cpu"', f'device = "{device}"')
    return plan(parse_spec(text, tmp_path / "warm.toml"))


def test_what_services_lost_most_to_is_built_first(tmp_path: Path) -> None:
    rows = (
        row("tiny/default", HERE, starts=2, spent=20.0),
        row("other/default", {**HERE, "threads": 4}, starts=3, spent=90.0),
        row("other/default", {**HERE, "cpu_flags": ["amx"]}, starts=1, spent=5.0),
    )
    found = plan_missing(jobs(tmp_path), WantedAnswer(rows, more=2), lambda _: HERE)
    assert [(one.job.target, one.starts, one.seconds, one.environments) for one in found.wanted] == [
        ("other/default", 4, 95.0, 2),
        ("tiny/default", 2, 20.0, 1),
    ]
    lines = found.lines(Name.parse("team/missing"))
    assert lines[0] == "team/missing:latest: 2 of 2 targets are wanted here"
    assert lines[1].split() == "other/default 4 starts 95 s compiled 2 environments".split()
    assert lines[-1] == "2 more are not shown"


def test_what_cannot_be_built_here_is_listed_with_the_reason_and_for_whom(tmp_path: Path) -> None:
    rows = (
        row("tiny/default", {**HERE, "torch": "2.14.0+cpu"}),
        row("gpt/default", HERE),
        row("tiny/default", {}),
    )
    found = plan_missing(jobs(tmp_path), WantedAnswer(rows), lambda _: HERE)
    assert found.wanted == () and found.unwanted == ("tiny/default", "other/default")
    assert [one.why for one in found.elsewhere] == [
        "torch: 2.14.0+cpu there, 2.13.0+cpu on this builder",
        "the spec has no such target",
        "its facts are not known any more: its next start brings them",
    ]
    text = "\n".join(found.lines(Name.parse("team/missing")))
    assert "for cpu avx2, torch 2.14.0+cpu  torch: 2.14.0+cpu there" in text


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (HERE, "this builder has no GPU"),
        ({**GPU, "gpu": "NVIDIA H100"}, "gpu: NVIDIA H200 there, NVIDIA H100 on this builder"),
        (GPU, ""),
    ],
)
def test_a_builder_makes_entries_for_its_own_gpu_only(tmp_path: Path, here: Facts, why: str) -> None:
    found = plan_missing(jobs(tmp_path, "cuda"), WantedAnswer((row("tiny/default", GPU),)), lambda _: here)
    assert [one.why for one in found.elsewhere] == ([why] if why else [])
    assert [one.job.target for one in found.wanted] == ([] if why else ["tiny/default"])


def test_a_start_that_named_no_target_counts_for_each(tmp_path: Path) -> None:
    useless = row("tiny/default", HERE, entry=Digest.of(b"e"), why="grad mode")
    found = plan_missing(jobs(tmp_path), WantedAnswer((row(None, HERE, spent=4.0), useless)), lambda _: HERE)
    assert [(one.job.target, one.seconds, one.perhaps, list(one.notes)) for one in found.wanted] == [
        ("tiny/default", 14.0, True, ["an entry fits there and starts compile all the same: grad mode"]),
        ("other/default", 4.0, True, []),
    ]


def test_a_start_of_a_lesser_cpu_is_served_by_an_entry_of_its_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SPEC.format(tiny=TINY).replace("[defaults]", '[defaults]\nmarch = "x86-64-v2"')
    spec = parse_spec(text, tmp_path / "warm.toml")
    [tiny, *_] = plan(spec)
    here = detect({**os.environ, **tiny.env})
    if not here.get("cpu_flags") or "march:x86-64-v2" not in here["cpu_flags"]:
        pytest.skip("this torch or machine has no levels")
    lesser = {**here, "cpu_flags": for_level(here)["cpu_flags"]}
    answer = WantedAnswer((row("tiny/default", lesser, starts=1, spent=5.0),))
    monkeypatch.setattr("cachesvc.warm.missing.ask_wanted", lambda *_: answer)
    context = SimpleNamespace(registry=SimpleNamespace(remote=None), name=spec.name, lane=None)
    assert [one.job.target for one in find_missing(context, [tiny], 30).wanted] == ["tiny/default"]


def environment_of(variables: dict[str, str]) -> Facts:
    """Return the fingerprint of a fresh process: in this one other tests may have set torch's options."""
    program = [sys.executable, "-m", "cachesvc_client", "environment", "--json"]
    done = subprocess.run(program, env=variables, capture_output=True, text=True, timeout=120, check=True)
    facts: Facts = json.loads(done.stdout)["fingerprint"]
    return facts


@pytest.mark.compiles
def test_only_what_was_wanted_is_compiled_and_is_wanted_no_more(
    registry: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "warm.toml"
    path.write_text(SPEC.format(tiny=TINY).replace('id = "other"', 'id = "other"\ngrad = "grad"'))

    def warm(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            command("warm", path, "--missing", *words),
            env=registry,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout)

    nothing = warm("--dry-run", "--json")
    assert nothing["format"] == "cachesvc.warm.missing/1"
    assert (nothing["rows"], nothing["unwanted"]) == ([], ["tiny/default", "other/default"])
    cold = ColdStart((ColdName(Namespace("team"), ShortName("missing")),))
    work = {"inductor": KindWork(1, 0, 21.0)}
    service = environment_of({**registry, **parse_spec(path.read_text(), path).targets[0].env})
    with Remote(registry["CACHESVC_URL"], registry["CACHESVC_TOKEN"]) as remote:
        remote.tell("PUT", "/v1/namespaces/team/policy", Policy())  # makes the namespace
        remote.report(ReportRequest("0" * 32, service, (), work, cold=cold))
    dry = warm("--dry-run", "--json", "--target", "tiny")
    assert dry["elsewhere"] == []
    assert [(one["target"], one["spent_seconds"], one["perhaps"]) for one in dry["rows"]] == [
        ("tiny/default", 21.0, True)
    ]
    built = warm("--json", "--target", "tiny")
    assert [(one["target"], one["status"]) for one in built["targets"]] == [("tiny/default", "warm")]
    assert warm("--dry-run", "--json")["rows"] == []


def test_options_that_contradict_it_are_refused(plain_environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "warm.toml"
    path.write_text(SPEC.format(tiny=TINY))
    done = subprocess.run(
        command("warm", path, "--missing", "--check"), env=plain_environment, capture_output=True, text=True
    )
    assert done.returncode == 2 and "--missing asks the registry what to build" in done.stderr
