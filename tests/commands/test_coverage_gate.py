"""Test ``coverage --gate`` against a real registry: which starts of planned environments would be cold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cachesvc.queries.planned import PlannedEnvironment, changed, machine_of, parse_change
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.names import Namespace, ShortName
from cachesvc_client.wire.requests.reports import ColdName, ColdStart, KindWork, ReportRequest
from tools.json_page import schema

H200 = {"torch": "2.13.0+cu130", "cuda": "13.0", "gpu": "NVIDIA H200", "compute_capability": "9.0"}


def gate(command, name: str, *words: object) -> tuple[int, list[tuple[str, str, str]], dict[str, Any]]:
    """Return the exit status, (torch, target, state) of each cell, and the answer, which its schema holds."""
    status, out, err = command("coverage", name, "--gate", "--json", *words)
    assert err == "", err
    answer = json.loads(out)
    Draft202012Validator(schema()).validate(answer)
    assert answer["passed"] == (status == 0) and answer["gate"]
    cells = [
        (row["facts"].get("torch", "-"), cell["target"], cell["state"])
        for row in answer["environments"]
        for cell in row["cells"]
    ]
    return status, cells, answer


def test_a_torch_upgrade_is_cold_until_its_entries_are_there(command, bundle) -> None:
    for target in ("bert/default", "vit/default"):
        command("push", bundle("team/upgrade", target))
    assert gate(command, "team/upgrade")[0] == 0
    status, cells, _ = gate(command, "team/upgrade", "--torch", "2.15.0")
    assert (status, cells) == (
        9,
        [("2.15.0+cpu", "bert/default", "cold"), ("2.15.0+cpu", "vit/default", "cold")],
    )
    command("push", bundle("team/upgrade", "bert/default", content=b"new", torch="2.15.0+cpu"))
    status, cells, _ = gate(command, "team/upgrade", "--torch", "2.15.0")
    assert status == 9 and {target: state for _, target, state in cells} == {
        "bert/default": "warm",
        "vit/default": "cold",
    }
    assert gate(command, "team/upgrade", "--torch", "2.15.0", "--target", "bert")[0] == 0
    status, out, _ = command("coverage", "team/upgrade", "--gate", "--torch", "2.15.0")
    assert status == 9 and "1 of 2 are warm in the planned environments" in out
    assert "vit/default is cold on 2.15.0+cpu" in out


def test_an_image_that_was_described_before_its_rollout(command, bundle, tmp_path: Path) -> None:
    command("push", bundle("team/image"))
    image = tmp_path / "image.json"
    image.write_text(command("environment", "--label", "bert@sha256:4bf5", CACHESVC_URL=None)[1])
    described = json.loads(image.read_text())
    assert described["format"] == "cachesvc.environment/1" and described["label"] == "bert@sha256:4bf5"
    assert described["fingerprint"]["python_abi"] == detect()["python_abi"]
    options = ("--environment", image, "--torch", "2.13.0+cpu")
    status, cells, answer = gate(command, "team/image", *options)
    assert (status, [state for *_, state in cells]) == (0, ["warm"])
    assert [row["label"] for row in answer["environments"]] == ["bert@sha256:4bf5"]
    # The image has no libc of the builder's age: nothing that links against a newer one loads there.
    status, _, answer = gate(command, "team/image", *options, "--set", "libc=2.1")
    assert status == 9 and answer["environments"][0]["cells"][0]["why"].startswith("libc: 2.1 here")


def test_what_is_not_known_of_a_plan_is_said(command, bundle, tmp_path: Path) -> None:
    command("push", bundle("team/unknown", threads=4, cxx="g++ 12"))
    here = {**detect({}), "torch": "2.13.0+cpu"}
    facts = {name: value for name, value in here.items() if name not in ("libc", "threads", "cxx")}
    (tmp_path / "plan.json").write_text(json.dumps({"fingerprint": facts}))
    plan = ("--environment", tmp_path / "plan.json")
    status, [(_, _, state)], answer = gate(command, "team/unknown", *plan)
    [cell] = answer["environments"][0]["cells"]
    assert (status, state) == (9, "unknown")
    assert cell["why"].startswith("libc: not known of this plan; say --set libc=")
    assert gate(command, "team/unknown", *plan, "--allow", "unknown")[0] == 0
    status, [(_, _, state)], answer = gate(command, "team/unknown", *plan, "--set", f"libc={here['libc']}")
    [cell] = answer["environments"][0]["cells"]
    assert (status, state) == (0, "warm") and cell["assumed"] == ["cxx", "threads"]


def test_settings_by_which_the_compiler_decides_are_no_warm_start(command, bundle, tmp_path: Path) -> None:
    command("push", bundle("team/settings", settings=["TORCHINDUCTOR_FREEZING=1"]))
    facts = {**detect({}), "torch": "2.13.0+cpu", "settings": []}
    (tmp_path / "plan.json").write_text(json.dumps({"fingerprint": facts}))
    status, [(_, _, state)], answer = gate(command, "team/settings", "--environment", tmp_path / "plan.json")
    assert (status, state) == (9, "unknown")
    assert "PyTorch's own keys decide" in answer["environments"][0]["cells"][0]["why"]


def test_an_environment_that_only_reported_a_cold_start_is_among_the_seen(command, bundle, registry) -> None:
    command("push", bundle("team/only-reported"))
    cold = ColdStart((ColdName(Namespace("team"), ShortName("only-reported")),))
    facts = {**detect({}), "torch": "2.14.1+cpu"}
    with Remote(registry.url, registry.token) as remote:
        remote.report(ReportRequest("0" * 32, facts, (), {"inductor": KindWork(1, 0, 9.0)}, cold=cold))
    status, cells, answer = gate(command, "team/only-reported")
    assert status == 9
    assert [(torch, state) for torch, _, state in cells] == [("2.13.0+cpu", "warm"), ("2.14.1+cpu", "cold")]
    assert [row["starts"] for row in answer["environments"]] == [0, 1]
    digest = answer["environments"][1]["environment"]
    status, cells, _ = gate(command, "team/only-reported", "--like", digest[:20], "--torch", "2.13.0")
    assert (status, cells) == (0, [("2.13.0+cpu", "bert/default", "warm")])


def test_a_gate_that_judges_nothing_or_a_missing_target_fails(command, bundle) -> None:
    command("push", bundle("team/few"))
    status, cells, _ = gate(command, "team/few", "--target", "gpt/default", "--target", "bert")
    assert status == 9 and {target: state for _, target, state in cells} == {
        "gpt/default": "cold",
        "bert/default": "warm",
    }
    cases = [
        (("--like", "h200"), 4, "--like 'h200'"),
        (("--set", "tritn=3"), 2, "did you mean triton?"),
        (("--set", "operations=add"), 2, "--set 'operations=add'"),
        (("--allow", "cold"), 2, "--allow"),
        (("--here", "--machine", "none.json"), 2, "none.json"),
    ]
    for words, expected, says in cases:
        result = command("coverage", "team/few", "--gate", *words)
        assert result[:2] == (expected, "") and says in result[2] and result[2].count("\n") == 1, result


def test_another_gpu_takes_what_follows_it_from_the_seen_ones() -> None:
    a100 = {**H200, "gpu": "NVIDIA A100", "compute_capability": "8.0", "driver": "570.1", "mig": "1g"}
    assert changed(a100, {"gpu": "NVIDIA H200"}, [a100, H200]) == H200
    assert changed(a100, {"gpu": "NVIDIA H200"}) == {
        name: value for name, value in H200.items() if name != "compute_capability"
    }
    other = {**H200, "compute_capability": "9.1"}
    assert "compute_capability" not in changed(a100, {"gpu": "NVIDIA H200"}, [H200, other]), "a doubt"
    assert changed(a100, {"gpu": "X", "compute_capability": "8.6"})["compute_capability"] == "8.6"


def test_another_torch_takes_its_triton_and_cuda_from_those_that_have_it() -> None:
    old, new = {**H200, "triton": "3.6"}, {**H200, "torch": "2.14.0+cu130", "triton": "3.7", "cuda": "13.0"}
    assert changed(old, {"torch": "2.14.0"}, [old, new]) == new
    left = changed(old, {"torch": "2.14.0"}, [old])
    assert left["torch"] == "2.14.0+cu130" and not {"triton", "cuda"} & set(left)
    assert changed(old, {"torch": old["torch"]}, []) == old, "no change"
    assert changed({**old, "torch": "2.13.0"}, {"torch": "2.14.0"})["torch"] == "2.14.0"


def test_an_image_is_put_on_another_machine() -> None:
    seen = [PlannedEnvironment({**H200, "cpu_isa": "avx512"}), PlannedEnvironment({"cpu_isa": "avx2"})]
    assert machine_of("h200", seen) == {
        "gpu": "NVIDIA H200",
        "compute_capability": "9.0",
        "cpu_isa": "avx512",
    }
    with pytest.raises(InvalidRequest, match="several machines"):
        machine_of("h200", [*seen, PlannedEnvironment({**H200, "cpu_isa": "avx2"})])
    with pytest.raises(NotFound, match="a100"):
        machine_of("a100", seen)
    with pytest.raises(InvalidRequest, match="no number"):
        parse_change("threads=many")
    assert parse_change("cpu_flags=avx, avx2") == ("cpu_flags", ["avx", "avx2"])
