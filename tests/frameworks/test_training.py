"""Test that training jobs of frameworks start again on another node without a compilation and without a
compiler, and end with the weights of the job that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.e2e.registries import Served

from .framework import NOTHING, build, restore, writing

PROGRAMS = ("lightning_training", "accelerate_training", "trainer_training")

pytestmark = pytest.mark.timeout(2400)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_job_that_starts_again_on_another_node_compiles_nothing(
    program: str, tmp_path: Path, registry: Served
) -> None:
    """Both jobs have the same variables. The callback of the framework publishes and reports; the second job
    has nothing new to publish."""
    checkpoints = str(tmp_path / "checkpoints")
    first = build(tmp_path / "builder", registry, program, checkpoints)
    assert first.answer["state"] == "miss" and first.work[0] > 0 and first.work[2] > 0, first.answer
    assert "training: published as training" in first.result.err
    again = restore(tmp_path / "node", registry, program, checkpoints, "resume", **writing(registry))
    assert (again.answer["state"], again.work) == ("hit", NOTHING), again.answer
    assert again.answer["digest"] == first.answer["digest"]
    assert "training: published already as training" in again.result.err
    assert hits(registry, program) == 1


def hits(registry: Served, program: str) -> int:
    """Return how many hits of starts under the program's name the registry counts."""
    url = f"{registry.url}/v1/namespaces/team/entries?name={program}"
    entries = httpx.get(url, headers={"Authorization": f"Bearer {registry.token}"}).json()
    return sum(use["hit"] for entry in entries for use in entry["usefulness"])
