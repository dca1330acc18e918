"""Test the releases of vLLM and torch that ran on GPUs, built for a CPU: a fresh host compiles nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.registries import serve

from .engine import PYTHON_OF_GPUS, engine_python, make_model, start


@pytest.mark.engines
def test_hit(tmp_path: Path) -> None:  # a short name: vLLM makes sockets below this folder
    python = engine_python("vLLM 0.26", PYTHON_OF_GPUS)
    model = make_model(python, tmp_path / "llama")
    for folder in ("registry", "cold", "restored"):
        (tmp_path / folder).mkdir()
    with serve(tmp_path / "registry") as registry:
        words = (registry, model, "team/pieces")
        cold = start(tmp_path / "cold", *words, publish=True, piecewise=True, python=python)
        restored = start(tmp_path / "restored", *words, piecewise=True, compilers=False, python=python)
    assert cold.work[0] > 0, cold.worker
    assert restored.work == (0, 0, 0), restored.worker
    assert (restored.worker["state"], restored.worker["reasons"]) == ("hit", [])
    compiled = cold.worker["observed"]["torch"]["graphs_compiled"]
    assert restored.worker["observed"]["torch"]["aot_hits"] == compiled, "no graph is traced again"
    assert restored.answer["tokens"] == cold.answer["tokens"]
