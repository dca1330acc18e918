"""Test that services of frameworks start on another node without a compilation and without a compiler, with
the builder's outputs.

`make test-frameworks` makes the environment: `requirements/frameworks.txt` on torch 2.13 for a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.registries import Served

from .framework import NOTHING, build, restore

PROGRAMS = (
    "transformers_generate",
    "diffusers_pipeline",
    "diffusers_dit",
    "sentence_transformers_encode",
    "timm_training",
    "torchao_int8",
    "kserve_predictor",
)

pytestmark = pytest.mark.timeout(2400)


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_node_compiles_nothing_and_answers_the_same(
    program: str, tmp_path: Path, registry: Served
) -> None:
    built = build(tmp_path / "builder", registry, program)
    assert built.answer["state"] == "miss" and built.work[0] > 0 and built.work[2] > 0, built.answer
    restored = restore(tmp_path / "node", registry, program)
    assert (restored.answer["state"], restored.work) == ("hit", NOTHING), restored.answer
    assert restored.answer["digest"] == built.answer["digest"]


def test_a_package_of_aotinductor_is_a_file_that_needs_no_cache(tmp_path: Path, registry: Served) -> None:
    """The builder makes it with compilers. The node loads the file, and cachesvc, which is attached, has
    nothing to restore: the name has no entry."""
    folder = str(tmp_path / "package")
    built = build(tmp_path / "builder", registry, "aot_package", folder)
    loaded = restore(tmp_path / "node", registry, "aot_package", folder, "load")
    assert (loaded.answer["state"], loaded.work) == ("miss", NOTHING), loaded.answer
    assert loaded.answer["digest"] == built.answer["digest"]
