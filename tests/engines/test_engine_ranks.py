"""Test that an engine of two ranks is one entry: every worker restores, and another number of ranks does not.

Both workers run on this machine's CPU, with a core each, and with the compile that GPUs have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.registries import Served

from .engine import called, start
from .test_warm import ARGUMENTS, serve_engine, warm

NOTHING = (0, 0, 0)
TWO = "tensor_parallel_size=2"
CORES = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
"""vLLM itself gives each rank a node of memory, of which most machines for tests have one."""
BATCH = f"max_num_batched_tokens={ARGUMENTS['max_num_batched_tokens']}"
pytestmark = pytest.mark.usefixtures("vllm")


@pytest.fixture(scope="module")
def warmed(registry: Served, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the report of a warm run that published ``team/two``, of an engine with two ranks."""
    place = tmp_path_factory.mktemp("two")
    return warm(place, registry, model, "team/two", piecewise=True, env=CORES, tensor_parallel_size=2)


def test_an_entry_holds_what_every_rank_needs(warmed: dict[str, Any]) -> None:
    assert (warmed["status"], warmed["exit_status"]) == ("warm", 0), warmed
    observed = warmed["observed"]
    assert (observed["compilations"], observed["tuning_runs"], observed["compiler_processes"]) == NOTHING
    assert warmed["kinds"]["vllm"]["files_after"] == 2, "the artifact of each rank"


def test_every_worker_of_a_service_restores_and_one_line_is_about_all(
    tmp_path: Path, registry: Served, model: Path, warmed: dict[str, Any]
) -> None:
    assert warmed["status"] == "warm", warmed
    restored = start(
        tmp_path, registry, model, "team/two", BATCH, TWO, piecewise=True, compilers=False, **CORES
    )
    assert restored.work == NOTHING, restored.answer
    workers = restored.answer["workers"]
    assert [worker["state"] for worker in workers] == ["hit", "hit"], workers
    assert [worker["counters"]["num_aot_artifacts_loaded"] for worker in workers] == [1, 1]
    assert restored.err.count("team/two:latest: all 2 ranks: hit: nothing compiled") == 1
    alone = start(tmp_path, None, model, "", BATCH, TWO, piecewise=True, **CORES)
    assert alone.answer["tokens"] == restored.answer["tokens"], "as without cachesvc"


def test_a_server_of_two_ranks_hits(
    tmp_path_factory: pytest.TempPathFactory, registry: Served, model: Path, warmed: dict[str, Any]
) -> None:
    assert warmed["status"] == "warm", warmed
    place = tmp_path_factory.mktemp("served")
    log, choices = serve_engine(
        place, registry, model, "team/two", "--tensor-parallel-size=2", piecewise=True, **CORES
    )
    assert "team/two:latest: all 2 ranks: hit: nothing compiled" in log, log[-5000:]
    assert called(place) == []
    assert [choice["finish_reason"] for choice in choices] == ["length"]


def test_an_engine_of_another_number_of_ranks_starts_as_without_us_and_says_why(
    tmp_path: Path, registry: Served, model: Path, warmed: dict[str, Any]
) -> None:
    assert warmed["status"] == "warm", warmed
    one = {"VLLM_CPU_OMP_THREADS_BIND": "0"}  # as many threads as a worker of two has
    other = start(tmp_path, registry, model, "team/two", BATCH, piecewise=True, **one)
    worker = other.worker
    assert worker["observed"]["compilations"] > 10 and worker["state"] in ("partial", "inert"), worker
    assert "num_aot_artifacts_loaded" not in worker["counters"]
    reasons = " ".join(worker["reasons"])
    assert "it was built for 2 ranks, and this engine has 1" in reasons, reasons


def test_the_workers_of_an_engine_publish_one_revision(
    tmp_path_factory: pytest.TempPathFactory, registry: Served, model: Path
) -> None:
    cold, host = tmp_path_factory.mktemp("cold"), tmp_path_factory.mktemp("fresh")
    builder = start(cold, registry, model, "team/own", TWO, publish=True, piecewise=True, **CORES)
    first, second = builder.answer["published"]
    assert first["revision"] == second["revision"]
    restored = start(host, registry, model, "team/own", TWO, piecewise=True, compilers=False, **CORES)
    assert restored.work == NOTHING, restored.answer
    assert [worker["state"] for worker in restored.answer["workers"]] == ["hit", "hit"]
    assert restored.answer["tokens"] == builder.answer["tokens"]
