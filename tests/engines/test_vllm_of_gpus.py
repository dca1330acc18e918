"""Test the releases of vLLM and torch that ran on GPUs, built for a CPU: a fresh host compiles nothing."""

from __future__ import annotations

import os
import subprocess
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


DESCRIBED = """\
import cachesvc_client
from cachesvc_client.graphs import operators
from cachesvc_client.kinds.kind import ProcessCallbacks
from cachesvc_client.kinds.vllm.kind import VllmState

registered = operators.RegisteredFunctions()
operators.install_hooks(registered)
VllmState().install_hooks(ProcessCallbacks(lambda: None, lambda _: None))
import vllm.compilation.decorators, vllm.ir.ops
for name in ("rms_norm", "fused_add_rms_norm"):
    print(operators.describe_operator(f"vllm_ir::{name}", registered))
"""


@pytest.mark.engines
def test_operators_of_its_own_have_a_description() -> None:
    """Their classes hash the sources of what implements them, which no other code may ask for."""
    python = engine_python("vLLM 0.26", PYTHON_OF_GPUS)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "client")}
    result = subprocess.run([str(python), "-c", DESCRIBED], env=environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    assert len({line for line in result.stdout.splitlines() if " code " in line}) == 2
