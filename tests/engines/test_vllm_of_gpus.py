"""Test the releases of vLLM and torch that ran on GPUs: an entry of one program is a hit in another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.registries import serve

from .engine import PYTHON_OF_GPUS, engine_python, make_model, start

ANOTHER_PROGRAM = (
    "import runpy, sys\n"
    "def run(depth):\n"
    "    return run(depth - 1) if depth else runpy.run_path(sys.argv[0], run_name='__main__')\n"
    "sys.argv = sys.argv[1:]\n"
    "run(5)\n"
)
"""Runs a program below other calls: operators of vLLM keep the stack of their registration."""


@pytest.mark.engines
def test_hit(tmp_path: Path) -> None:
    python = engine_python("vLLM 0.26", PYTHON_OF_GPUS)
    model = make_model(python, tmp_path / "llama")
    for folder in ("registry", "cold", "restored"):
        (tmp_path / folder).mkdir()
    with serve(tmp_path / "registry") as registry:
        words = (registry, model, "team/pieces")
        cold = start(tmp_path / "cold", *words, publish=True, piecewise=True, python=(str(python),))
        assert cold.work[0] > 0, cold.worker
        another = (str(python), "-c", ANOTHER_PROGRAM)
        restored = start(tmp_path / "restored", *words, piecewise=True, compilers=False, python=another)
    assert restored.work == (0, 0, 0), restored.worker
    assert (restored.worker["state"], restored.worker["reasons"]) == ("hit", [])
    assert (
        restored.worker["observed"]["torch"]["aot_hits"]
        == cold.worker["observed"]["torch"]["graphs_compiled"]
    )
    assert restored.answer["tokens"] == cold.answer["tokens"]
