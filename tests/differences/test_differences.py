"""Test that the search for false hits finds one that is planted, and that a few differences make none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import SCALAR
from tests.versions.environments import python_of

from .__main__ import exactly, problems, run

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


@pytest.mark.long
def test_a_few_differences_make_no_false_hit(tmp_path: Path) -> None:
    """No key of PyTorch's own holds what differs here."""
    only, probes = exactly((NOTHING, PATCHED, MATH)), ("views", "layout")
    result = run(Path(sys.executable), tmp_path, only, probes, **SCALAR)
    assert problems(result["rows"]) == []
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
