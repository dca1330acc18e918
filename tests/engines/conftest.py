"""Mark the tests of engines, and make what they share: a model, a registry, and a name published from a cold
start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.registries import Served, serve

from .engine import EngineResult, make_model, start, vllm_python


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder that start an engine."""
    for item in items:
        needed = {"vllm", "tilelang", "flashinfer", "helion", "sglang"}
        fixtures = needed.intersection(getattr(item, "fixturenames", ()))
        if Path(__file__).parent in item.path.parents and fixtures:
            item.add_marker("engines")


@pytest.fixture(scope="session")
def vllm() -> Path:
    """Return the interpreter that has vLLM."""
    return vllm_python()


@pytest.fixture(scope="session")
def model(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a Llama of two layers, without weights."""
    return make_model(vllm, tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="session")
def registry(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a registry."""
    del vllm  # it skips where vLLM is missing
    with serve(tmp_path_factory.mktemp("registry")) as served:
        yield served


@pytest.fixture(scope="session")
def cold(registry: Served, model: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineResult:
    """Start vLLM in its default configuration on an empty host; it publishes as ``team/llm``."""
    return start(tmp_path_factory.mktemp("cold"), registry, model, "team/llm", publish=True)


@pytest.fixture(scope="session")
def cold_piecewise(registry: Served, model: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineResult:
    """Start vLLM with its own piecewise compile on an empty host; it publishes as ``team/pieces``."""
    place = tmp_path_factory.mktemp("cold")
    return start(place, registry, model, "team/pieces", publish=True, piecewise=True)
