"""Test that one rank of a job says how all ranks started."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cachesvc_client.hooks.counters import Observation
from cachesvc_client.outcome.judge import Report, RevisionUse
from cachesvc_client.outcome.rank_log import say_of_ranks
from cachesvc_client.ranks.job import Job
from cachesvc_client.ranks.job_folder import process_id
from cachesvc_client.ranks.outcomes import RankOutcome, exchange, first_to_say, line
from cachesvc_client.wire.digest import Digest

KEY = Digest.of(b"job")
JOBS = [Job(rank, 2, rank, 2, KEY) for rank in range(2)]
ME = process_id(os.getpid())
HIT = [RankOutcome(rank, ME, "hit", 1, 0, 0, 0, "") for rank in range(2)]


def test_the_outcomes_of_all_ranks_are_known_once_each_has_left_one(tmp_path: Path) -> None:
    assert exchange(tmp_path, JOBS[0], HIT[0]) == ()
    assert exchange(tmp_path, JOBS[1], HIT[1]) == tuple(HIT)
    later = RankOutcome(0, ME, "partial", 1, 2, 0, 1, "why")
    assert exchange(tmp_path, JOBS[0], later) == (later, HIT[1])


def test_what_an_earlier_run_or_anybody_else_left_does_not_count(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    name = process_id(ended.pid)
    ended.wait()
    good = asdict(HIT[1])
    for message in ({**good, "process": name}, {**good, "process": 1}, {**good, "more": 1}, {}, []):
        (tmp_path / "outcome-1.json").write_text(json.dumps(message))
        assert exchange(tmp_path, JOBS[0], HIT[0]) == ()
    (tmp_path / "outcome-1.json").write_text(json.dumps(good))
    assert exchange(tmp_path, JOBS[0], HIT[0]) == tuple(HIT)


def test_a_line_names_the_first_rank_that_is_no_hit(tmp_path: Path) -> None:
    assert line(HIT) == "all 2 ranks: hit: nothing compiled"
    other = RankOutcome(1, ME, "partial", 1, 3, 1, 2, "the GPU differs")
    text = "1 of 2 ranks are no hit; rank 1: partial, 3 compilations, 1 tuning runs: the GPU differs"
    assert line([HIT[0], other]) == text
    assert first_to_say(tmp_path, [HIT[0], other]) and not first_to_say(tmp_path, [HIT[0], other])
    assert first_to_say(tmp_path, HIT)


def test_a_later_run_of_the_same_job_is_said_too(tmp_path: Path) -> None:
    """torchrun on its default port gives each run the same key."""
    assert first_to_say(tmp_path, HIT)
    assert first_to_say(tmp_path, [replace(HIT[0], process="1:2"), HIT[1]])


def report(state: str = "hit", compilations: int = 0, restored: int = 1) -> Report:
    """Return the report of a rank."""
    used = tuple(RevisionUse("team/x", "t", f"sha256:{number}", 1, 1, 1) for number in range(restored))
    return Report(state, (), Observation(compilations=compilations), used)  # type: ignore[arg-type]


def test_the_last_rank_to_know_says_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cachesvc")
    say_of_ranks(report(), JOBS[0], "team/x", tmp_path)
    assert caplog.records == []
    for job in (JOBS[1], JOBS[0], JOBS[1]):
        say_of_ranks(report(), job, "team/x", tmp_path)
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == ("INFO", "team/x: all 2 ranks: hit: nothing compiled")
    facts = vars(record)["cachesvc"]
    assert (facts["event"], [one["state"] for one in facts["ranks"]]) == ("ranks", ["hit", "hit"])
    say_of_ranks(report("partial", 4), JOBS[1], "team/x", tmp_path)
    assert caplog.records[-1].levelname == "WARNING"
    assert "1 of 2 ranks are no hit; rank 1: partial, 4 compilations" in caplog.records[-1].getMessage()


def test_ranks_that_restored_nothing_or_share_no_node_say_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cachesvc")
    for job in JOBS:
        say_of_ranks(report("miss", 3, restored=0), job, "team/x", tmp_path)
        say_of_ranks(report(), Job(job.rank, 4, job.local, 2, KEY), "team/x", tmp_path)
    assert caplog.records == []


def test_a_store_that_cannot_be_written_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    say_of_ranks(report(), JOBS[0], "team/x", tmp_path / "file")
    assert caplog.records == []
