"""Test that the results of a script's ranks are joined to one result."""

from __future__ import annotations

import json
import os

import pytest

from cachesvc.warm.spec.plan import plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc.warm.worker.main import as_rank
from cachesvc.warm.worker.phase import CapturedFile, PhaseRequest, PhaseResult, Times
from cachesvc.warm.worker.ranks import combine_files, rank_folder, result_file
from cachesvc_client.hooks.counters import Observation, TorchWork
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import SpecError

SPEC = 'name = "team/x"\n[[target]]\nid = "it"\nscript = "it.py"\nnproc = 2\n'
SHARED, OWN = "ab/" + "c" * 30 + ".best_config", "fxgraph/ab/f" + "a" * 30 + "/" + "b" * 30


@pytest.fixture
def phase_request(tmp_path):
    (tmp_path / "it.py").touch()
    [job] = plan(parse_spec(SPEC, tmp_path / "warm.toml"))
    return PhaseRequest("compile", job, stage=str(tmp_path / "stage"))


def leave(tmp_path, rank, **more):
    captured = []
    for path, data in ((SHARED, b'{"%d": 1, "same": %d}' % (rank, rank)), (OWN + str(rank), b"own")):
        place = rank_folder(tmp_path / "stage", rank) / "inductor" / path
        place.parent.mkdir(parents=True)
        place.write_bytes(data)
        captured.append(CapturedFile("inductor", path, len(data)))
    result = PhaseResult(
        "compile",
        times={"script": Times(1.0 + rank)},
        observation=Observation(
            compilations=2,
            processes=("g++",),
            counts={"helion": {"searches": 1}},
            torch=TorchWork(counters={"hits": 1}, bypassed=("why",)),
        ),
        capture=tuple(captured),
        files_read=(f"inductor/{OWN}{rank}",),
        files_added=("inductor/x",),
        scopes=("host",),
    )
    result = codec.build(PhaseResult, {**codec.plain(result), **more})
    result_file(tmp_path / "result.json", rank).write_text(json.dumps(codec.plain(result)))


def test_counts_are_summed_and_files_are_joined(phase_request, tmp_path):
    for rank in range(2):
        leave(tmp_path, rank)
    whole = combine_files(phase_request, tmp_path / "result.json")
    assert whole.observation == Observation(
        compilations=4,
        processes=("g++", "g++"),
        counts={"helion": {"searches": 2}},
        torch=TorchWork(counters={"hits": 2}, bypassed=("why",)),
    )
    assert whole.times == {"script": Times(2.0)}
    assert whole.files_read == (f"inductor/{OWN}0", f"inductor/{OWN}1")
    assert whole.files_added == ("inductor/x",)
    assert {file.path: file.ranks for file in whole.capture} == {
        SHARED: (),
        OWN + "0": (0,),
        OWN + "1": (1,),
    }
    merged = tmp_path / "stage" / "inductor" / SHARED
    assert json.loads(merged.read_bytes()) == {"0": 1, "1": 1, "same": 0}
    assert {file.size for file in whole.capture if file.path == SHARED} == {merged.stat().st_size}
    assert [path.name for path in (tmp_path / "stage").iterdir()] == ["inductor"]


def test_the_graphs_of_all_ranks_are_one_workload(phase_request, tmp_path):
    """Each rank has a device of its own; one entry serves all of them."""
    for rank in range(2):
        leave(tmp_path, rank, graph_requests={"device": [f"cuda:{rank}"], "dtype": ["float32"]})
    assert combine_files(phase_request, tmp_path / "result.json").graph_requests == {
        "device": ["cuda:0", "cuda:1"],
        "dtype": ["float32"],
    }


def test_the_error_of_a_rank_is_reported_though_torchrun_ended_the_others(phase_request, tmp_path):
    leave(tmp_path, 1, error="it.py raised ValueError: no")
    assert (
        combine_files(phase_request, tmp_path / "result.json").error == "rank 1: it.py raised ValueError: no"
    )


def test_a_rank_without_a_result_is_reported(phase_request, tmp_path):
    leave(tmp_path, 0)
    assert combine_files(phase_request, tmp_path / "result.json") is None


def test_a_rank_has_a_folder_a_stage_and_a_result_of_its_own(phase_request, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("CACHESVC_STORE", str(tmp_path / "store"))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"):
        monkeypatch.setenv(name, "")
    own, answer, bad = as_rank(phase_request, tmp_path / "result.json")
    assert (own.stage, answer.name, bad) == (str(tmp_path / "stage" / "rank-1"), "result-1.json", 1)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "store" / "ranks-inductor" / "1")
    assert os.environ["CUDA_CACHE_PATH"] == str(tmp_path / "store" / "ranks-cuda" / "1")


def test_only_a_script_runs_as_ranks(tmp_path):
    with pytest.raises(SpecError, match=r"line 4.*nproc.*only a script"):
        parse_spec(
            'name = "team/x"\n[[target]]\nid = "it"\nnproc = 2\nfactory = "m:f"\n', tmp_path / "w.toml"
        )
    (tmp_path / "it.py").touch()
    with pytest.raises(SpecError, match="nproc"):
        parse_spec(SPEC.replace("nproc = 2", "nproc = 0"), tmp_path / "w.toml")


def test_ranks_are_part_of_the_workload(phase_request):
    whole = phase_request.job.workload(model=None, script=None, inputs={}, dtype="")
    assert whole.ranks == 2
    assert PhaseRequest("eager", phase_request.job).ranks == 0
