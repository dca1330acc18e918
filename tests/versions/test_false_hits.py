"""Test that code of one setting is not restored under another, and that the safety features work, on each
version of torch.

One run of `benchmarks/gpu/false_hits.py` on the CPU is one builder and two services; that file says what it
demands of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .environments import python_of

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu" / "false_hits.py"
SAFETY = (
    "tests/e2e/test_canary.py::test_a_canary_keeps_wrong_numbers_from_the_caller",
    "tests/graphs/test_operators.py",
)
pytestmark = [pytest.mark.compiles, pytest.mark.timeout(1500)]


# From 2.13 on PyTorch's own keys hold these settings; rows of tests/matrix try them on the version here.
OLDEST = pytest.param(
    "2.8.0",
    marks=pytest.mark.skipif(
        os.environ.get("CI") == "true", reason="as 2.11.0, and slow: make test-versions runs it"
    ),
)


@pytest.mark.parametrize("version", [OLDEST, "2.11.0"])
def test_other_settings_compile_again_and_equal_settings_hit(version: str, tmp_path: Path) -> None:
    command = [python_of(version), SCRIPT, "--device", "cpu", "--one-way", "--out", tmp_path]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (tmp_path / "false_hits.json").exists(), outcome.stdout + outcome.stderr
    result = json.loads((tmp_path / "false_hits.json").read_text())
    assert result["problems"] == [], outcome.stdout
    _, same, other = (row["process"] for row in result["rows"])
    assert len(same["cases"]) == len(other["cases"]) == 7
    assert same["state"] == "hit" and same["compilations"] == 0 and same["called"] == []
    assert any("float16" in reason for reason in other["reasons"]), other["reasons"]


@pytest.mark.parametrize("version", ["2.8.0", "2.15.0"])
def test_the_canary_and_operators_are_safe_on_the_oldest_and_the_newest_version(version: str) -> None:
    command = [python_of(version), "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *SAFETY]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-5000:]
    assert " passed" in result.stdout and "skipped" not in result.stdout, result.stdout[-500:]
