"""Test that the search for false hits finds one that is planted, and that a few differences make none."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.e2e.harness import SCALAR
from tests.versions.environments import python_of

from .hunt import report
from .hunt.groups import GROUPS
from .hunt.judge import judge_run
from .settings.__main__ import ROOT, exactly, problems, run, write
from .settings.service import spread

BACKWARD = "program: operator: backward"
FLOAT16 = "context: autocast(cpu, float16)"
BFLOAT16 = "context: autocast(cpu, bfloat16)"
READS = "program: default argument, and what an operator reads"
PATCHED = "program: patched tensor method"
MATH = "context: sdpa_kernel(MATH)"
NOTHING = "none: nothing"


def verdicts(result: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the verdicts by difference and by probe, where all differences were applied."""
    assert all(row["applied"] for row in result["rows"]), result["rows"]
    return {
        f"{row['group']}: {row['name']}": {probe: one["verdict"] for probe, one in row["probes"].items()}
        for row in result["rows"]
    }


def test_some_differences_are_the_same_share_of_each_group() -> None:
    groups = {"many": 400, "few": 40, "one": 1}
    everything = [SimpleNamespace(group=group, name=i) for group, n in groups.items() for i in range(n)]
    ordered = spread(everything)
    assert len({(one.group, one.name) for one in ordered}) == len(ordered) == 441
    for share in (0.1, 0.25, 0.5):
        beginning = ordered[: round(441 * share)]
        for group, size in groups.items():
            names = [one.name for one in beginning if one.group == group]
            assert abs(len(names) - size * share) <= 1, (share, group)
            # Neighbours are often alike, so both halves of a group are there alike.
            assert abs(sum(name < size / 2 for name in names) - len(names) / 2) <= 1, (share, group)


def test_a_file_keeps_what_was_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "differences.json"

    def result(**outcomes: str) -> dict[str, Any]:
        rows = [{"group": "g", "name": name, "outcome": outcome} for name, outcome in outcomes.items()]
        return {"torch": "2.13.0", "rows": rows}

    write(path, {"2.13.0": result(a="compiled", b="false hit"), "2.8.0": result(a="right")})
    write(path, {"2.13.0": result(b="right", c="right")})
    written = {
        version: {row["name"]: row["outcome"] for row in result["rows"]}
        for version, result in json.loads(path.read_text()).items()
    }
    assert written == {"2.13.0": {"a": "compiled", "b": "right", "c": "right"}, "2.8.0": {"a": "right"}}


@pytest.mark.long
def test_a_few_differences_make_no_false_hit(tmp_path: Path) -> None:
    """No key of PyTorch's own holds what differs here. A method of tensors that the program replaced is in
    each key: what a trace calls below Dynamo is not known."""
    only, probes = exactly((NOTHING, PATCHED, MATH)), ("views", "layout")
    result = run(Path(sys.executable), tmp_path, only, probes, **SCALAR)
    assert problems(result["rows"]) == []
    reports = {row["name"]: row["report"] for row in result["rows"]}
    assert reports["nothing"] == "hit", "else a silent compile is not seen"
    assert verdicts(result) == {
        NOTHING: {"views": "right", "layout": "right"},
        PATCHED: {"views": "compiled", "layout": "compiled"},
        MATH: {"views": "right", "layout": "compiled"},
    }


@pytest.mark.compiles
def test_some_settings_are_tried_with_frames(tmp_path: Path) -> None:
    """The trial reads attributes of the client that no type checker sees."""
    only, some = exactly((NOTHING, MATH)), ("--some", "2")
    result = run(Path(sys.executable), tmp_path, only, ("views",), frames=True, chosen=some, **SCALAR)
    assert problems(result["rows"]) == []
    assert verdicts(result) == {NOTHING: {"views": "right"}, MATH: {"views": "right"}}
    assert {row["report"] for row in result["rows"]} == {"hit"}


@pytest.mark.long
def test_a_false_hit_is_found_where_keys_lack_the_code_of_operators(tmp_path: Path) -> None:
    only = exactly((NOTHING, BACKWARD, READS))
    result = run(Path(sys.executable), tmp_path, only, ["training"], plant="python_operators", **SCALAR)
    wrong = {"training": "false hit"}
    assert verdicts(result) == {NOTHING: {"training": "right"}, BACKWARD: wrong, READS: wrong}
    begins = {line.partition(", probe")[0] for line in problems(result["rows"])}
    assert begins == {f"false hit: {BACKWARD}", f"false hit: {READS}"}


@pytest.mark.long
@pytest.mark.parametrize(("plant", "verdict"), [("", "compiled"), ("autocast_state", "false hit")])
def test_a_false_hit_is_found_where_keys_lack_the_dtype_of_autocast(
    plant: str, verdict: str, tmp_path: Path
) -> None:
    """Torch 2.11's own keys lack it."""
    result = run(
        python_of("2.11.0"), tmp_path, exactly((FLOAT16,)), ["inference"], plant, under=BFLOAT16, **SCALAR
    )
    assert verdicts(result) == {FLOAT16: {"inference": verdict}}


# The hunt ---------------------------------------------------------------------------------------

FEW_CASES = (
    "^(control: a module|objects: global, in function|libraries: a helper, module"
    "|same objects: is, of lists)$"
)


def test_the_hunt_has_cases_of_every_group_which_are_programs() -> None:
    """The same seed makes the same cases."""
    for name, make in GROUPS.items():
        if name.startswith("patched"):
            continue  # these come from the torch that is installed, which takes seconds
        cases = list(make(random.Random(f"3 {name}")))
        assert [one.name for one in cases] == [one.name for one in make(random.Random(f"3 {name}"))]
        assert {one.group for one in cases} == {name} and (len(cases) >= 40 or name == "control")
        assert len({one.name for one in cases}) >= len(cases) * 0.95
        for case in cases:
            compile(case.text(7).replace("ROW", "hunt_00001"), case.name, "exec")


@pytest.mark.parametrize(
    ("restored", "without", "reused", "verdict"),
    [
        (1.0, 1.0, 1, "right"),
        (1.0, 1.0, 0, "missed"),
        (2.0, 1.0, 1, "false hit"),
        (2.0, 1.0, 0, "wrong"),
        (2.0, 2.0, 1, "pytorch"),
        (2.0, 3.0, 1, "false hit"),
    ],
)
def test_the_judge_of_the_hunt(restored: float, without: float, reused: int, verdict: str) -> None:
    """Eager answers 1."""

    def answer(value: float) -> dict[str, Any]:
        return {"answer": [{"class": "Tensor", "values": [value]}], "error": ""}

    counted = {"loaded": reused, "given": 0, "compiled": 1 - reused, "state": "hit" if reused else "inert"}
    run = {**answer(restored), **counted, "reasons": ["other keys"], "frames_refused": []}
    tried = {"eager": answer(1.0), "without": answer(without)}
    assert judge_run(run, tried, {})["verdict"] == verdict


@pytest.mark.compiles
@pytest.mark.parametrize("recorded", [(), ("--as-you-go",)], ids=["by warm", "as you go"])
def test_a_few_cases_of_the_hunt_and_a_planted_hole_in_each_group(
    recorded: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "hunt.json"
    arguments = ["--only", FEW_CASES, "--planted=1", "--jobs=1", "--out", str(out), *recorded]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
    groups = "--groups=control,objects,libraries,same"
    command = [sys.executable, "-m", "tests.differences", groups, *arguments]
    subprocess.run(command, env=environment, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    (result,) = json.loads(out.read_text()).values()
    rows = [row for row in result["rows"] if not row["planted"]]
    assert len(rows) == 8 and all(row["applied"] for row in rows)
    assert all(row["visible"] == (row["group"] != "control") for row in rows)
    found = report.holes(result)
    assert set(found) == {"objects", "libraries", "same objects"}
    assert all(count == planted for count, planted in found.values())
    assert report.problems(result) == []
