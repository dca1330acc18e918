"""Test what `warm` makes of an engine target without starting one: the spec, the identity, the errors.

`tests/engines/test_warm.py` starts real engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachesvc.warm.context import TargetContext
from cachesvc.warm.report.render import plan_lines
from cachesvc.warm.spec.plan import Job, plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc.warm.verdict import judge
from cachesvc.warm.worker import engine, engine_worker
from cachesvc.warm.worker.main import perform
from cachesvc.warm.worker.phase import CapturedFile, PhaseRequest, PhaseResult
from cachesvc.warm.worker.user_code import UserCodeError
from cachesvc_client.hooks.counters import Observation
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import SpecError, Unsupported

SPEC = """\
name = "team/llm"

[defaults]
dtypes = ["float32", "bfloat16"]
kind = "training"
tracing = "never"
tolerance = {rtol = 0.5}

[[target]]
id = "llm"
vllm = "llama"
args = {max_model_len = 256, compilation_config = {mode = 0}}
env = {VLLM_CPU_KVCACHE_SPACE = "1"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def job_of(folder: Path, text: str = SPEC) -> Job:
    (job,) = plan(parse_spec(text, folder / "warm.toml"))
    return job


def test_an_engine_is_one_entry_whatever_the_defaults_say_of_models(folder: Path) -> None:
    job = job_of(folder)
    assert (job.target, job.is_engine, job.is_script) == ("llm", True, False)
    assert job.spec.vllm == str(folder / "llama")
    assert (job.spec.kind, job.spec.dtypes, job.spec.tracing, job.spec.tolerance) == (
        "inference",
        (),
        "always",
        None,
    )
    assert job.options["args"] == '{"max_model_len": 256, "compilation_config": {"mode": 0}}'
    assert job.options["env.VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert plan_lines([job])[0].startswith(f"llm: vllm of {folder / 'llama'} (args=")


WRONG = {
    "missing folder": ('vllm = "nowhere"', "line 4", "vllm: no such folder"),
    "no config": ('vllm = "."', "line 4", "vllm: no config.json in"),
    "two types": ('vllm = "llama"\nscript = "a.py"', "line 4", "both script and vllm"),
    "no ranks": ('vllm = "llama"\nargs = {tensor_parallel_size = 0}', "line 5", "0 is no number of ranks"),
    "ranks in words": ('vllm = "llama"\nargs = {tensor_parallel_size = "2"}', "line 5", "no number of ranks"),
    "too many ranks": ('vllm = "llama"\nargs = {tensor_parallel_size = 65}', "line 5", "allowed: 1 to 64"),
    "pipeline": ('vllm = "llama"\nargs = {pipeline_parallel_size = 2}', "line 5", "cannot be proven yet"),
    "data parallel": ('vllm = "llama"\nargs = {data_parallel_size = 2}', "line 5", "cannot be proven yet"),
    "model twice": ('vllm = "llama"\nargs = {model = "x"}', "line 5", "args.model: the key vllm names"),
    "extension": ('vllm = "llama"\nargs = {worker_extension_cls = "a.B"}', "line 5", "warm itself extends"),
    "inputs": ('vllm = "llama"\ninputs = {}', "line 5", "inputs: the engine decides this itself"),
    "device": ('vllm = "llama"\ndevice = "cpu"', "line 5", "device: the engine decides this itself"),
    "nproc": ('vllm = "llama"\nnproc = 2', "line 5", "nproc: the engine decides this itself"),
    "list of arguments": ('vllm = "llama"\nargs = ["-x"]', "line 5", "is not a table of engine arguments"),
    "misspelt": ('vlm = "llama"', "line 4", "did you mean 'vllm'?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line_with_file_line_and_key(folder: Path, case: str) -> None:
    keys, line, problem = WRONG[case]
    (folder / "a.py").write_text("")
    with pytest.raises(SpecError) as error:
        parse_spec(f'name = "team/llm"\n[[target]]\nid = "llm"\n{keys}\n', folder / "warm.toml")
    text = str(error.value)
    assert text.startswith(f"{folder}/warm.toml, {line}: target 'llm': ") and problem in text, text
    assert "\n" not in text


def test_an_engine_is_identified_by_version_path_configuration_and_arguments(folder: Path) -> None:
    digest = engine.engine_digest(job_of(folder), "0.32.0")
    (folder / "llama/README.md").write_text("no part of it")
    assert digest == engine.engine_digest(job_of(folder), "0.32.0")
    others = {engine.engine_digest(job_of(folder), "0.33.0")}
    for old, new in (("256", "128"), ('"1"', '"2"'), ("mode = 0", "mode = 3")):
        others.add(engine.engine_digest(job_of(folder, SPEC.replace(old, new)), "0.32.0"))
    (folder / "copy").mkdir()
    (folder / "copy/config.json").write_text((folder / "llama/config.json").read_text())
    others.add(engine.engine_digest(job_of(folder, SPEC.replace("llama", "copy")), "0.32.0"))
    (folder / "adapter").write_text("1")
    with_file = SPEC + 'files = ["adapter"]\n'
    others.add(engine.engine_digest(job_of(folder, with_file), "0.32.0"))
    (folder / "adapter").write_text("2")
    others.add(engine.engine_digest(job_of(folder, with_file), "0.32.0"))
    for name in ("generation_config.json", "modeling.py", "config.json"):
        (folder / "llama" / name).write_text('{"changed": true}')
        others.add(engine.engine_digest(job_of(folder), "0.32.0"))
    assert len(others) == 10 and digest not in others


def ranks_job(folder: Path) -> Job:
    return job_of(folder, SPEC.replace("max_model_len", "tensor_parallel_size = 2, max_model_len"))


def test_the_ranks_of_an_engine_are_part_of_its_workload(folder: Path) -> None:
    one, two = job_of(folder), ranks_job(folder)
    assert (one.ranks, two.ranks) == (1, 2)
    assert two.workload(model=None, script=None, inputs={}, dtype="").ranks == 2
    assert PhaseRequest("compile", two).ranks == 0, "vLLM starts them, and torchrun does not"


def parallel(**changes: Any) -> SimpleNamespace:
    """Return what `warm` reads of vLLM's ParallelConfig, of two ranks on this node."""
    facts = {"world_size": 2, "world_size_across_dp": 2, "local_world_size": 2, "data_parallel_size": 1}
    return SimpleNamespace(**{**facts, "distributed_executor_backend": "mp", **changes})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"world_size_across_dp": 4}, "the engine has 4 ranks, and args says 2"),
        ({"distributed_executor_backend": "ray"}, "are started by 'ray' or on several nodes"),
        ({"local_world_size": 1}, "on several nodes"),
    ],
)
def test_ranks_that_cannot_be_proven_are_refused(folder: Path, changes: dict[str, Any], problem: str) -> None:
    engine._check_ranks(ranks_job(folder), parallel())
    with pytest.raises(UserCodeError, match=problem):
        engine._check_ranks(ranks_job(folder), parallel(**changes))


class Workers:
    """Stands for vLLM's engine: answers for its workers."""

    def __init__(self, *results: PhaseResult) -> None:
        self._results = results

    def collective_rpc(self, method: str) -> list[str]:
        assert method == "cachesvc_result"
        return [json.dumps(codec.plain(result)) for result in self._results]


def worker_result(**facts: Any) -> PhaseResult:
    observation = Observation(compilations=facts.pop("compilations", 0), compiler_processes=1)
    return PhaseResult("replay", observation=observation, **facts)


def test_what_the_workers_did_is_one_result_of_the_engine(folder: Path) -> None:
    """Work of one worker alone is seen, also where the first worker has none."""
    request = PhaseRequest("replay", ranks_job(folder))
    answers = Workers(
        worker_result(files_read=("vllm/a",), files_emitted=("triton/a",), files_required=("triton/x",)),
        worker_result(compilations=3, files_read=("vllm/b",), files_added=("inductor/c",)),
    )
    whole = engine._results(answers, request)
    assert whole.observation is not None
    assert (whole.observation.compilations, whole.observation.compiler_processes) == (3, 2)
    assert (whole.files_read, whole.files_added) == (("vllm/a", "vllm/b"), ("inductor/c",))
    assert (whole.files_emitted, whole.files_required) == (("triton/a",), ("triton/x",))
    assert judge.remaining_work(whole)


def test_a_worker_that_does_not_answer_or_fails_fails_the_phase(folder: Path) -> None:
    request = PhaseRequest("replay", ranks_job(folder))
    with pytest.raises(UserCodeError, match="1 of 2 workers of the engine answered"):
        engine._results(Workers(worker_result()), request)
    with pytest.raises(UserCodeError, match="rank 1: not restored"):
        engine._results(Workers(worker_result(), worker_result(error="not restored")), request)


def test_a_worker_that_does_not_know_its_rank_restores_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vLLM that moved the name that tells the rank: no files of one rank may pass as another's."""
    monkeypatch.setattr(engine_worker, "this_job", lambda: None)
    with pytest.raises(Unsupported, match="does not know which rank of the engine it is"):
        engine_worker._as_rank(PhaseRequest("replay", ranks_job(folder)))
    assert engine_worker._as_rank(PhaseRequest("replay", job_of(folder))).stage == ""


@pytest.mark.parametrize(
    ("content", "problem"), [("{", "not JSON: "), ("[]", "not a JSON object"), ("\0", "not JSON: ")]
)
def test_a_broken_configuration_of_the_model_is_one_line(folder: Path, content: str, problem: str) -> None:
    (folder / "llama/config.json").write_text(content)
    result = perform(PhaseRequest("eager", job_of(folder)))
    assert result.error.startswith(f"{folder}/llama/config.json: {problem}") and "\n" not in result.error


def test_a_python_without_vllm_is_one_line_that_names_it(folder: Path) -> None:
    result = perform(PhaseRequest("eager", job_of(folder)))
    assert result.error == (
        f"vLLM is not installed for {sys.executable} (run cachesvc warm with a Python that has vLLM)"
    )


def test_the_path_of_a_replay_has_every_program_but_compilers(tmp_path: Path) -> None:
    for place, names in (("a", ("g++-12", "ls", "x86-tool")), ("b", ("cat",))):
        (tmp_path / place).mkdir()
        for name in names:
            (tmp_path / place / name).write_text("#!/bin/sh\necho $0\n")
            (tmp_path / place / name).chmod(0o755)
    (tmp_path / "links").mkdir()
    path = f"{tmp_path}/a::{tmp_path}/b:{tmp_path}/absent"
    cut = engine.path_without_compilers(path, tmp_path / "links")
    programs = {name for place in cut.split(os.pathsep) if os.path.isdir(place) for name in os.listdir(place)}
    assert programs == {"ls", "x86-tool", "cat"}
    assert f"{tmp_path}/b" in cut.split(os.pathsep)
    ran = subprocess.run(["ls"], env={"PATH": cut}, capture_output=True, text=True, check=True)
    assert ran.stdout.strip().endswith("/ls")


LOG = """\
INFO 11-24 13:00:00 [loader.py:1] ready
(Worker pid=7) ERROR 11-24 13:00:01 [multiproc_executor.py:750] Traceback (most recent call last):
(Worker pid=7) ERROR 11-24 13:00:01 [multiproc_executor.py:750] RuntimeError: Cannot find any model weights
(EngineCore pid=6) Exception: WorkerProc initialization failed due to an exception in a background process.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_reason_of_an_engine_that_did_not_start_is_the_error_of_the_process_that_failed() -> None:
    assert list(engine.errors_in(LOG)) == ["RuntimeError: Cannot find any model weights"]
    assert list(engine.errors_in("torch.cuda.OutOfMemoryError: 3 GiB\nno error here")) == [
        "OutOfMemoryError: 3 GiB"
    ]
    assert list(engine.errors_in("")) == []


def test_only_an_engine_with_an_artifact_of_its_own_is_told_to_load_it(folder: Path) -> None:
    job = job_of(folder)
    script = replace(job, spec=replace(job.spec, vllm="", script="a.py"))
    artifact = f"{'a' * 32}/torch_aot_compile/{'b' * 64}/rank_0_0/model"
    description = f"modelinfos/{'a' * 32}/{'b' * 32}/m.json"
    files = [CapturedFile("vllm", description, 1), CapturedFile("vllm", artifact, 1)]

    def demanding(job: Job, files: list[CapturedFile]) -> dict[str, str]:
        nothing: Any = None
        return TargetContext(job, nothing, folder, nothing, nothing).demanding(files)

    assert demanding(job, files) == {"VLLM_FORCE_AOT_LOAD": "1"}
    assert demanding(job, files[:1]) == {}
    assert demanding(script, files) == {}


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (((1, 2), (3,)), ""),
        (((1, 9), (3,)), "prompt 1 has other tokens than in the builder's engine: token 2 is 9, not 2"),
        (((1, 2), (3, 4)), "prompt 2 has other tokens than in the builder's engine: 2 tokens, not 1"),
        (((1, 2),), "the restored engine answered 1 prompts, and the builder's 2"),
    ],
)
def test_other_tokens_are_not_warm(tokens: tuple[tuple[int, ...], ...], reason: str) -> None:
    compiled = PhaseResult("compile", tokens=((1, 2), (3,)))
    replay = PhaseResult("replay", observation=Observation(), tokens=tokens)
    verdict = judge.verdict(compiled, replay)
    assert (verdict.warm, verdict.reasons) == (not reason, (reason,) if reason else ())
