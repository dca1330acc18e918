"""Test that the search for false hits finds one that is planted, and that a few differences make none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.e2e.harness import SCALAR
from tests.versions.environments import python_of

from .__main__ import exactly, problems, run, write
from .service import spread

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
    """No key of PyTorch's own holds what differs here."""
    only, probes = exactly((NOTHING, PATCHED, MATH)), ("views", "layout")
    result = run(Path(sys.executable), tmp_path, only, probes, **SCALAR)
    assert problems(result["rows"]) == []
    reports = {row["name"]: row["report"] for row in result["rows"]}
    assert reports["nothing"] == "hit", "else a silent compile is not seen"
    assert verdicts(result) == {
        NOTHING: {"views": "right", "layout": "right"},
        PATCHED: {"views": "compiled", "layout": "right"},
        MATH: {"views": "right", "layout": "compiled"},
    }


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
