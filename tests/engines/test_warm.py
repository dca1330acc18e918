"""Test `cachesvc warm` on an engine: it proves a start without compilers, and a service hits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.registries import Served
from tests.services.process import free_port

from .engine import PYTHON, called, engine_environment, start

ARGUMENTS = {
    "load_format": "dummy",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 1 << 26,
    "seed": 0,
}
NOTHING = (0, 0, 0)
_SECONDS = 1500
pytestmark = pytest.mark.usefixtures("vllm")


def warm(
    place: Path,
    registry: Served,
    model: Path,
    name: str,
    *options: str,
    piecewise: bool = False,
    env: Mapping[str, str] | None = None,
    **changed: Any,
) -> dict[str, Any]:
    """Run `cachesvc warm` on the host ``place``. Return its report of the only target, with its status.

    ``env``: the variables of the engine. ``changed``: engine arguments."""
    arguments = ", ".join(f"{key} = {json.dumps(value)}" for key, value in {**ARGUMENTS, **changed}.items())
    variables = ", ".join(f"{key} = {json.dumps(value)}" for key, value in (env or {}).items())
    target = f'id = "llm"\nvllm = "{model}"\nargs = {{{arguments}}}\nenv = {{{variables}}}\n'
    (place / "warm.toml").write_text(f'name = "{name}"\n[[target]]\n{target}')
    own = {**engine_environment(place, None, "", piecewise=piecewise), **registry.publisher}
    command = [str(PYTHON), "-m", "cachesvc", "warm", str(place / "warm.toml"), "--json", *options]
    result = subprocess.run(
        command, env=own, cwd=place / "work", capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert result.stdout, result.stderr[-3000:]
    [target_report] = json.loads(result.stdout)["targets"]
    return {**target_report, "exit_status": result.returncode}


@pytest.fixture(scope="module")
def warmed(registry: Served, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the report of a warm run that published ``team/warmed``."""
    return warm(tmp_path_factory.mktemp("warm"), registry, model, "team/warmed")


def test_an_engine_is_warm_when_another_start_compiles_nothing_without_a_compiler(
    warmed: dict[str, Any],
) -> None:
    assert (warmed["status"], warmed["exit_status"]) == ("warm", 0), warmed
    assert warmed["revision"] and warmed["replays"] == 2
    observed = warmed["observed"]
    assert (observed["compilations"], observed["tuning_runs"], observed["compiler_processes"]) == NOTHING
    assert observed["torch"]["aot_hits"] >= 1
    # An artifact, which vLLM saves and cannot load on a CPU; and the description of the model's class, which
    # the process that owns the engine cannot take: vLLM gives the worker another number of threads.
    assert warmed["kinds"]["vllm"]["files_before"] == 2
    assert warmed["kinds"]["vllm"]["files_after"] == 0
    assert warmed["numbers"]["restored_first_seconds"] < warmed["numbers"]["first_call_seconds"]


def test_an_embedding_model_is_warm_when_its_numbers_are_the_builders(
    tmp_path: Path, registry: Served, model: Path
) -> None:
    pools = {"runner": "pooling", "convert": "embed"}
    made = warm(tmp_path, registry, model, "team/embeds", **pools)
    assert (made["status"], made["exit_status"]) == ("warm", 0), made
    observed = made["observed"]
    assert (observed["compilations"], observed["tuning_runs"], observed["compiler_processes"]) == NOTHING
    checked = warm(tmp_path, registry, model, "team/embeds", "--check", **pools)
    assert (checked["status"], checked["exit_status"]) == ("warm", 0), checked


def test_a_later_run_is_fresh_a_check_is_warm_and_other_arguments_are_cold(
    tmp_path: Path, registry: Served, model: Path, warmed: dict[str, Any]
) -> None:
    assert warmed["status"] == "warm"
    assert warm(tmp_path, registry, model, "team/warmed")["status"] == "fresh"
    checked = warm(tmp_path, registry, model, "team/warmed", "--check")
    assert (checked["status"], checked["exit_status"]) == ("warm", 0), checked
    stale = warm(tmp_path, registry, model, "team/warmed", "--check", max_num_seqs=2)
    assert (stale["status"], stale["exit_status"]) == ("cold", 9)
    said = "team/warmed:latest has this target, but with a difference in "
    assert any(reason.startswith(said) for reason in stale["reasons"]), stale["reasons"]
    missing = warm(tmp_path, registry, model, "team/missing", "--check")
    assert (missing["status"], missing["exit_status"]) == ("cold", 9), missing


def test_a_server_and_a_script_on_fresh_hosts_hit(
    tmp_path_factory: pytest.TempPathFactory, registry: Served, model: Path, warmed: dict[str, Any]
) -> None:
    assert warmed["status"] == "warm", warmed
    # Short names: vLLM's sockets lie in TMPDIR, and their paths have at most 107 bytes.
    server, host = tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("script")
    log, choices = serve_engine(server, registry, model, "team/warmed")
    assert "team/warmed:latest: hit: nothing compiled" in log, log[-5000:]
    assert called(server) == []
    assert [choice["finish_reason"] for choice in choices] == ["length"]
    batch = f"max_num_batched_tokens={ARGUMENTS['max_num_batched_tokens']}"
    script = start(host, registry, model, "team/warmed", batch, compilers=False)
    assert script.work == NOTHING, script.worker
    assert script.worker["state"] == "hit", script.worker


def test_a_proof_of_vllms_own_artifact_demands_that_it_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, registry: Served, model: Path
) -> None:
    """The platform of the test compiles as on GPUs; there vLLM loads its artifact or ends, in the verdict."""
    builder, host = tmp_path_factory.mktemp("builder"), tmp_path_factory.mktemp("fresh")
    report = warm(builder, registry, model, "team/artifact", piecewise=True)
    assert report["status"] == "warm", report
    assert report["kinds"]["vllm"]["files_after"] == 1
    batch = f"max_num_batched_tokens={ARGUMENTS['max_num_batched_tokens']}"
    restored = start(host, registry, model, "team/artifact", batch, piecewise=True, compilers=False)
    assert restored.work == NOTHING, restored.worker
    assert restored.worker["counters"]["num_aot_artifacts_loaded"] == 1


def test_an_engine_that_does_not_start_is_one_line_and_publishes_nothing(
    tmp_path: Path, registry: Served, model: Path
) -> None:
    crashed = warm(tmp_path, registry, model, "team/crashed", load_format="auto")
    assert (crashed["status"], crashed["exit_status"], crashed["revision"]) == ("failed", 9, "")
    [reason] = crashed["reasons"]
    assert reason.startswith("the engine did not start: ") and "weights" in reason, reason
    unknown = warm(tmp_path, registry, model, "team/crashed", max_model_length=256)
    assert unknown["reasons"] == [
        "args: vLLM 0.32.0 has no engine argument 'max_model_length' (did you mean 'max_model_len'?)"
    ]
    assert unknown["exit_status"] == 9


def serve_engine(
    place: Path,
    registry: Served,
    model: Path,
    name: str,
    *options: str,
    piecewise: bool = False,
    **variables: str,
) -> tuple[str, list[Any]]:
    """Run vLLM's server on the host ``place``, without compilers, until it has answered.

    Return its log and the choices of the answer."""
    env = engine_environment(place, registry, name, piecewise=piecewise, compilers=False) | variables
    del env["CACHESVC_NAME"]  # `cachesvc run` sets it
    port, log = free_port(), place / "log"
    engine = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    engine += [*(f"--{key.replace('_', '-')}={value}" for key, value in ARGUMENTS.items()), *options]
    command = [
        str(PYTHON),
        "-m",
        "cachesvc",
        "run",
        name,
        "--",
        *engine,
        "--host=127.0.0.1",
        f"--port={port}",
    ]
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, env=env, cwd=place / "work", stdout=out, stderr=out, start_new_session=True
        )
    try:
        answer = _ask(process, f"http://127.0.0.1:{port}", log, model)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return log.read_text(errors="replace"), answer["choices"]


def _ask(process: subprocess.Popen[bytes], url: str, log: Path, model: Path) -> dict[str, Any]:
    """Return the server's answer to a prompt, as soon as it answers."""
    question = {"model": str(model), "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            answer = httpx.post(f"{url}/v1/completions", json=question, timeout=60)
            answer.raise_for_status()
            return dict(answer.json())
        except httpx.ConnectError:
            time.sleep(0.5)
    pytest.fail(f"the server did not answer: {log.read_text(errors='replace')[-5000:]}")
