"""Test a training job that attaches, publishes and reports by `integrations.training`, and that the modules
of frameworks say what they need. `tests/frameworks` has the frameworks themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import SCALAR, ProgramResult, run
from .registries import Served, free_url, serve

SIZES = ("2", "2", "3")
"""The third step compiles again, after the job has published."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("registry")) as served:
        yield served


def train(place: Path, registry: Served, **more) -> ProgramResult:
    variables = {**SCALAR, **registry.publisher, "CACHESVC_NAME": "team/loop", "CACHESVC_MODE": "readwrite"}
    variables |= {"CACHESVC_LOG": "info", **more.pop("variables", {})}
    return run("training_loop.py", *SIZES, place=place, prepared=True, **variables, **more)


def test_a_job_publishes_what_it_compiled_and_a_restart_on_another_node_compiles_nothing(
    tmp_path: Path, registry: Served
) -> None:
    first = train(tmp_path / "first", registry)
    assert first.answer["state"] == "miss"
    assert first.err.count("training: published as training, revision") == 2, first.err
    again = train(tmp_path / "again", registry, compilers=False)
    assert (again.answer["state"], again.answer["compilations"], again.compilers) == ("hit", 0, []), again.err
    assert again.answer["weights"] == first.answer["weights"]
    assert again.err.count("training: published already as training, revision") == 1, again.err


def test_a_job_whose_registry_is_away_trains_to_its_end(tmp_path: Path, registry: Served) -> None:
    result = train(tmp_path, registry, variables={"CACHESVC_URL": free_url()})
    assert result.answer["compilations"] > 0
    assert "training goes on, not published: " in result.err


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("lightning", "needs Lightning: pip install lightning"),
        ("transformers", "needs transformers: pip install transformers accelerate"),
    ],
)
def test_a_module_whose_framework_is_missing_says_what_to_install(module: str, line: str) -> None:
    name = f"cachesvc_client.integrations.{module}"
    # None in sys.modules is how Python says that a package is not there, also where it is.
    packages = ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks", "transformers")
    code = f"import sys; sys.modules.update(dict.fromkeys({packages})); import {name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.strip().splitlines()[-1] == f"ImportError: {name} {line}"
