"""Test the benchmark of engines without an engine: what an interrupted run measures when it goes on, and how
the counts of workers become those of the engine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines.__main__ import EngineBenchmark, _with_credentials, table
from benchmarks.engines.process import whole
from benchmarks.hosts import Host, Registry

OBSERVED = {"compilations": 1, "tuning_runs": 0, "compiler_processes": 2, "processes": ["g++"]}
START = {
    "seconds": {"import": 1.0, "engine": 2.0, "first token": 3.0},
    "compile_seconds": 1.0,
    "observed": OBSERVED,
    "called": [],
    "tokens": [[1], [2]],
}


class Planned(EngineBenchmark):
    """Notes which starts are made, on which hosts, and ends as if it were killed after some."""

    def __init__(self, folder: Path, killed_after: int = 100, **changes: Any) -> None:
        options = {
            "out": folder,
            "ranks": 1,
            "rounds": 2,
            "layers": 0,
            "width": 0,
            "args": {},
            "env": {},
            "once": [],
        }
        options |= {"methods": ["cold", "copied", "cachesvc"], "limit": 0, **changes}
        super().__init__("llama", folder / "llama", Registry("url"), argparse.Namespace(**options))
        self.made: list[tuple[str, str]] = []
        self.logs: list[str] = []
        self._killed_after = killed_after

    def _warm(self) -> dict[str, Any]:
        return {"status": "warm"}

    def _start(self, method: str, host: Host, audit: bool, log_file: Path) -> dict[str, Any]:
        host.environment()
        left = host.folder / "home" / ".cache" / "vllm"
        assert left.exists() == (method == "copied"), "a fresh host, or a copy"
        left.mkdir(parents=True, exist_ok=True)
        if len(self.made) == self._killed_after:
            raise KeyboardInterrupt
        self.made.append((method, host.folder.name))
        self.logs.append(log_file.name)
        assert audit == host.folder.name.endswith("-audited")
        return START


def measure(bench: Planned, earlier: dict[str, Any]) -> dict[str, Any]:
    """Return what a run has measured when it ends, also by an interrupt, as its file has it."""
    text = json.dumps(earlier)
    try:
        for measured in bench.run(earlier):
            text = json.dumps(measured)
    except KeyboardInterrupt:
        pass
    return dict(json.loads(text))


def test_a_run_goes_on_where_it_was_killed_and_hosts_of_killed_starts_are_made_anew(tmp_path: Path) -> None:
    first, second = Planned(tmp_path, killed_after=2), Planned(tmp_path)
    measured = measure(second, measure(first, {}))
    assert first.made == [("cold", "cold-0"), ("copied", "copied-0")]
    rest = ["cachesvc-0", "cold-1", "copied-1", "cachesvc-1", "cachesvc-0-audited"]
    assert [name for _, name in second.made] == rest
    assert {method: len(starts) for method, starts in measured["starts"].items()} == {
        "cold": 2,
        "copied": 2,
        "cachesvc": 2,
        "cachesvc, audited": 1,
    }
    third = Planned(tmp_path)
    assert measure(third, measured) == measured and third.made == []


def test_a_method_of_the_first_round_alone_is_not_started_again(tmp_path: Path) -> None:
    bench = Planned(tmp_path, methods=["cold", "copied"], rounds=3, once=["cold"])
    measured = measure(bench, {})
    assert {method: len(starts) for method, starts in measured["starts"].items()} == {
        "cold": 1,
        "copied": 3,
    }
    assert len({*bench.logs}) == 4, "each start has a log of its own"


def test_no_start_begins_that_may_end_after_the_limit(tmp_path: Path) -> None:
    bench = Planned(tmp_path, limit=1e9)
    bench._longest = 2e9
    assert (
        measure(bench, {}) == {**measure(Planned(tmp_path, rounds=0), {}), "starts": {}} and bench.made == []
    )


def test_several_ranks_are_arguments_and_variables_of_the_engine(tmp_path: Path) -> None:
    measured = measure(Planned(tmp_path, ranks=2, rounds=0, methods=["cold"], env={"A": "1"}), {})
    assert measured["arguments"]["tensor_parallel_size"] == 2
    assert measured["env"]["NCCL_NVLS_ENABLE"] == "0" and measured["env"]["A"] == "1"
    alone = measure(Planned(tmp_path, rounds=0, methods=["cold"]), {})
    assert "tensor_parallel_size" not in alone["arguments"] and alone["env"] == {}


def test_the_counts_of_an_engine_are_the_sums_of_its_workers() -> None:
    worker = {"observed": OBSERVED, "compile_seconds": None, "counters": {"num_aot_artifacts_loaded": 1}}
    other = {**worker, "compile_seconds": 3.0}
    answer = whole([worker, other])
    assert (answer["observed"]["compilations"], answer["observed"]["compiler_processes"]) == (2, 4)
    assert answer["compile_seconds"] == 3.0 and answer["workers"] == [worker, other]
    assert "workers" not in whole([worker])


def test_a_table_shows_the_most_of_each_method() -> None:
    [line] = [text for text in table("llama", {"starts": {"cold": [START]}}).splitlines() if "cold" in text]
    assert line.split()[-3:] == ["1", "2", "same"]


def test_the_keys_of_a_registry_are_kept_for_its_next_start_by_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    first = Registry("http://a", "token", "trust", "key", 1)
    assert _with_credentials(first, file) is first and file.stat().st_mode & 0o777 == 0o600
    again = _with_credentials(Registry("http://b", pid=2), file)
    assert (again.url, again.token, again.trust, again.signing_key) == ("http://b", "token", "trust", "key")
    with pytest.raises(FileNotFoundError):
        _with_credentials(Registry("http://b"), tmp_path / "none")
