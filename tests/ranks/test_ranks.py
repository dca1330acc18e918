"""Test which job a process belongs to, by the variables of launchers, and the files of all its ranks as one
set."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.kinds import rule_of
from cachesvc_client.node.install import serves_rank
from cachesvc_client.ranks import job as jobs
from cachesvc_client.ranks.job import join, misfit, this_job
from cachesvc_client.ranks.join_files import join_captures
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import FileRecord

TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


def test_torchruns_ranks_share_a_key_and_a_restarted_job_has_another_key():
    one, other = this_job(TORCHRUN), this_job({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"})
    assert (one.rank, one.world, one.local, one.here, one.one_node) == (1, 2, 1, 2, True)
    assert one.key == other.key
    for changed in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "MASTER_PORT", "MASTER_ADDR"):
        assert this_job({**TORCHRUN, changed: "7"}).key != one.key


def test_the_ranks_of_this_node_are_known_among_several_nodes():
    job = this_job({**TORCHRUN, "WORLD_SIZE": "4", "RANK": "3"})
    assert (job.rank, job.local, job.here, job.one_node) == (3, 1, 2, False)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"},
        {**TORCHRUN, "RANK": "2"},
        {**TORCHRUN, "RANK": "-1"},
        {**TORCHRUN, "RANK": ""},
        {name: value for name, value in TORCHRUN.items() if name != "WORLD_SIZE"},
    ],
)
def test_a_single_process_is_in_no_job(environ):
    assert this_job(environ) is None


def test_a_loopback_address_means_that_all_ranks_are_here():
    bare = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    job = this_job(bare)
    assert (job.local, job.here) == (2, 4)
    far = this_job({**bare, "MASTER_ADDR": "node-9"})
    assert (far.rank, far.here) == (2, 0), "nobody knows which other ranks are here, so nobody waits for them"
    assert this_job({name: value for name, value in bare.items() if name != "MASTER_PORT"}).here == 0


@pytest.fixture
def joined(monkeypatch):
    monkeypatch.setattr(jobs, "_joined", [])


@pytest.mark.usefixtures("joined")
def test_a_worker_of_an_engine_is_the_rank_that_the_engine_tells(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    join(0, 2, ["tcp://127.0.0.1:5000"])
    first = this_job()
    assert (first.rank, first.world, first.local, first.here, first.one_node) == (0, 2, 0, 2, True)
    join(1, 2, ["tcp://127.0.0.1:5000"])
    assert this_job().rank == 1 and this_job().key == first.key
    join(1, 2, ["tcp://127.0.0.1:5001"])
    assert this_job().key != first.key, "another engine that the same process starts"
    assert this_job(TORCHRUN).key != first.key


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (2, 2), (-1, 2)])
def test_numbers_that_are_no_rank_make_no_job(monkeypatch, rank, world):
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    join(rank, world, [])
    assert this_job() is None


@pytest.mark.parametrize("starter", ["multiprocessing", "torchrun", "plain"])
def test_some_processes_may_learn_their_rank_later(tmp_path, starter):
    ask = "from cachesvc_client.ranks.job import may_become_rank as ask\n"
    (tmp_path / "torchrun").write_text(ask + "print(ask())\n")
    (tmp_path / "spawns.py").write_text(
        ask + "import multiprocessing\ndef work():\n    print(ask(), flush=True)\n"
        "if __name__ == '__main__':\n    assert not ask()\n"
        "    for way in ('spawn', 'fork'):\n"
        "        child = multiprocessing.get_context(way).Process(target=work)\n"
        "        child.start()\n        child.join()\n"
    )
    command = {
        "multiprocessing": [str(tmp_path / "spawns.py")],
        "torchrun": [str(tmp_path / "torchrun"), "--standalone"],
        "plain": ["-c", ask + "print(ask())"],
    }[starter]
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=dict(os.environ))
    assert (
        result.stdout.split()
        == {"multiprocessing": ["True"] * 2, "torchrun": ["True"], "plain": ["False"]}[starter]
    ), result.stderr


# One revision of all ranks.


TUNED = "ab/" + "c" * 30 + ".best_config"
KERNEL = "fxgraph/ab/f" + "a" * 30 + "/" + "b" * 30


def test_shared_files_are_stored_once_and_other_files_name_their_ranks():
    shared, own = SourceFile("inductor", KERNEL, b"x"), SourceFile("inductor", KERNEL + "1", b"y")
    some = SourceFile("inductor", KERNEL + "2", b"z")
    joined = join_captures({0: [shared, some], 1: [shared, own], 2: [some, shared]}, rule_of)
    assert {file.path: file.ranks for file in joined} == {
        KERNEL: (),
        KERNEL + "1": (1,),
        KERNEL + "2": (0, 2),
    }
    assert join_captures({0: [shared]}, rule_of) == [shared]


def test_tuning_results_are_merged_and_the_lowest_rank_supplies_other_files():
    first = [SourceFile("inductor", TUNED, b'{"a": 1, "b": 2}'), SourceFile("inductor", KERNEL, b"first")]
    second = [SourceFile("inductor", TUNED, b'{"b": 3, "c": 4}'), SourceFile("inductor", KERNEL, b"second")]
    joined = {file.path: file for file in join_captures({1: second, 0: first}, rule_of)}
    assert joined[KERNEL].data == b"first"
    assert joined[TUNED].data == b'{"b": 2, "c": 4, "a": 1}'
    assert joined[TUNED].ranks == joined[KERNEL].ranks == ()


def entry(seconds: int, guards: str, at: int) -> bytes:
    """Make an entry as PyTorch does: the time, the addresses and the variables of the process differ by
    rank."""
    debug = f"import os\nos.environ['TORCHELASTIC_ERROR_FILE'] = '/tmp/{at}'\nimport torch\n"
    return pickle.dumps({"time": seconds, "guards": guards, "debug": debug, "at": f"<f at {hex(at)}>"})


def test_two_ranks_entries_of_one_key_are_one_unless_their_guards_differ():
    folder = "aotautograd/a" + "k" * 30
    other = "aotautograd/a" + "l" * 30
    first, second = entry(26423873752, "s0 < 9", 0x7F94BAA39760), entry(25781127316, "s0 < 9", 0x7F2C73345760)
    apart = entry(25781127316, "s0 < 10", 0x7F2C73345760)

    def source(place, data):
        return SourceFile("inductor", f"{place}/{Digest.of(data).hex[:40]}", data)

    joined = join_captures(
        {
            0: [source(folder, first), source(other, first)],
            1: [source(folder, second), source(folder, apart)],
            2: [source(folder, second), source(other, b"no pickle")],
        },
        rule_of,
    )
    assert [(file.path.split("/")[1][1], file.data, file.ranks) for file in joined] == [
        ("k", first, ()),
        ("l", first, (0,)),
        ("k", apart, (1,)),
        ("l", b"no pickle", (2,)),
    ]


def test_a_rank_takes_its_own_and_the_shared_files():
    record = FileRecord("inductor", KERNEL, 1, Digest.of(b"x"), 0, 0)
    mine = replace(record, ranks=(0, 2))
    assert [serves_rank(record, rank) for rank in (None, 0, 1)] == [True, True, True]
    assert [serves_rank(mine, rank) for rank in (None, 0, 1, 2)] == [True, True, False, True]


def test_files_of_single_ranks_do_not_serve_a_job_of_another_size(manifest):
    job = this_job(TORCHRUN)
    apart = manifest(ranks=4, files=[(0,), ()])
    assert "built by 4 ranks" in misfit(apart, job) and "this job has 2" in misfit(apart, job)
    assert misfit(apart, None) == ""
    assert misfit(manifest(ranks=2, files=[(0,), (1,)]), job) == ""
    assert misfit(manifest(ranks=4, files=[(), ()]), job) == "", (
        "files that all ranks share serve any number of ranks"
    )


@pytest.fixture
def manifest():
    from pathlib import Path

    from cachesvc_client.wire import codec
    from cachesvc_client.wire.manifest.records import Manifest

    golden = Path(__file__).parents[1] / "golden" / "manifest-1.json"
    base = codec.build(Manifest, codec.parse_json(golden.read_bytes(), limit=1 << 20, what="manifest"))

    def make(ranks, files):
        return replace(
            base,
            workload=replace(base.workload, ranks=ranks),
            files=tuple(replace(base.files[0], ranks=of) for of in files),
        )

    return make
