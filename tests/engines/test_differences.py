"""Test that no two engines whose graphs may differ ask for one artifact: vLLM drops all guards at a load.

The names are vLLM's own hash and cachesvc's identity, by the real vLLM. `tests/kinds/test_vllm.py` has what
cannot be changed in one installation: versions, operators and plugins."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from .engine import PROGRAMS, engine_environment

LEAST = 40
"""How many differences must have been tried."""
pytestmark = pytest.mark.usefixtures("vllm")


@pytest.fixture(scope="module")
def names(vllm: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("names")
    env = {**engine_environment(place, None, ""), "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [str(vllm), str(PROGRAMS / "differences.py"), str(model)]
    result = subprocess.run(
        command, env=env, cwd=place / "work", capture_output=True, text=True, check=False, timeout=600
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answer: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return answer


def test_each_difference_is_another_artifact(names: dict[str, Any]) -> None:
    assert names["refused"] == {}
    assert len(names["names"]) > LEAST
    by_name = defaultdict(list)
    for label, name in names["names"].items():
        by_name[name].append(label)
    assert [labels for labels in by_name.values() if len(labels) > 1] == []


def test_what_changes_no_graph_is_the_same_artifact(names: dict[str, Any]) -> None:
    base = names["names"]["base"]
    assert {label: name == base for label, name in names["same"].items()} == dict.fromkeys(
        names["same"], True
    )
