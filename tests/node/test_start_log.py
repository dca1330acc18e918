"""Test what a node remembers of its starts, and what the command ``stats`` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cachesvc_client.commands.stats import last_of_name, read_starts, sum_starts
from cachesvc_client.hooks.counters import Observation
from cachesvc_client.node.store import NodeStore
from cachesvc_client.outcome.judge import Report, State
from cachesvc_client.outcome.log import hit_line
from cachesvc_client.outcome.start_log import StartLog


def report(state: State, **more: object) -> Report:
    reasons = () if state == "hit" else ("shapes: here 4x8",)
    return Report(state=state, reasons=reasons, observed=Observation(), **more)


def stats(store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "cachesvc_client", "stats", *words]
    variables = {**os.environ, "CACHESVC_STORE": str(store)}
    return subprocess.run(program, env=variables, capture_output=True, text=True, timeout=60)


def test_a_start_is_one_record_that_follows_its_outcome(tmp_path: Path) -> None:
    log = StartLog()
    log.keep(report("unused"), "team/bert", tmp_path)
    assert list(read_starts(tmp_path)) == [], "it neither compiled nor used anything"
    log.keep(report("hit", saved=3.0, bytes_moved=9), "team/bert", tmp_path)
    log.keep(report("partial", saved=2.0, seconds={"compile": 1.5}), "team/bert", tmp_path)
    [record] = read_starts(tmp_path)
    assert (record.state, record.why, record.saved) == ("partial", "shapes: here 4x8", 2.0)
    assert record.program == Path(sys.argv[0]).name


def test_starts_are_summed_by_their_names(tmp_path: Path) -> None:
    for number, (names, state) in enumerate(
        [("team/bert", "hit"), ("team/llm", "miss"), ("team/bert", "hit")]
    ):
        log = StartLog()
        log._at += number
        log.keep(report(state, saved=1.5, bytes_moved=100), names, tmp_path)
    bert, llm = sorted(sum_starts(read_starts(tmp_path)), key=lambda row: row.names)
    assert (bert.starts, bert.hit, bert.moved, bert.saved) == (2, 2, 200, 3.0)
    assert (llm.starts, llm.hit, llm.miss) == (1, 0, 1)
    shown = stats(tmp_path)
    assert shown.returncode == 0 and shown.stdout.startswith("3 starts on this machine in the last 30 days\n")
    assert "the last that compiled: team/llm (" in shown.stdout and "miss: shapes: here 4x8" in shown.stdout
    answer = json.loads(stats(tmp_path, "--json").stdout)
    assert [row["hits"] for row in answer["rows"]] == [2, 0]
    assert answer["last_compiled"]["names"] == "team/llm"


def test_a_hit_that_traced_says_why_in_the_log_in_stats_and_in_explain(tmp_path: Path) -> None:
    """It is a hit that takes seconds: a comment was edited, or an input was made in inference mode."""
    why = "encode: models.py has changed"
    traced = replace(report("hit"), reasons=("9 files were installed", f"traced all the same: {why}"))
    assert hit_line(traced, "team/bert").startswith(f"team/bert: hit, but traced: {why}: nothing compiled, ")
    assert hit_line(report("hit"), "team/bert").startswith("team/bert: hit: nothing compiled, ")
    for number, (one, names) in enumerate(
        [(traced, "team/bert:latest"), (report("partial"), "team/bert:latest"), (report("inert"), "team/llm")]
    ):
        log = StartLog()
        log._at += number
        log.keep(one, names, tmp_path)
    shown = stats(tmp_path).stdout
    assert "the last hit that traced: team/bert:latest (" in shown and f"hit, but traced: {why}\n" in shown
    assert json.loads(stats(tmp_path, "--json").stdout)["last_traced"]["why"] == why
    compiled, hit = last_of_name(read_starts(tmp_path), "team/bert:latest")
    assert compiled.endswith("partial: shapes: here 4x8") and hit.endswith(f"hit, but traced: {why}")


def test_the_store_keeps_the_newest_thousand_of_thirty_days(tmp_path: Path) -> None:
    store = NodeStore(tmp_path)
    for number in range(1005):
        store.keep_start(f"{number:013d}-1", b"x")
    assert len(list(store.starts(10))) == 1000
    old = tmp_path / "v1" / "starts" / f"{1000:013d}-1"
    os.utime(old, (time.time() - 31 * 86_400,) * 2)
    store.keep_start(f"{2000:013d}-1", b"new")
    assert not old.exists() and list(store.starts(10))[-1] == b"new"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"at": 1}', b'{"at":1,"names":"a","program":"","state":"x"}']
)
def test_a_record_that_cannot_be_read_is_left_out(tmp_path: Path, data: bytes) -> None:
    NodeStore(tmp_path).keep_start("0", data)
    StartLog().keep(report("hit"), "team/bert", tmp_path)
    assert [record.state for record in read_starts(tmp_path)] == ["hit"]


def test_a_terminal_gets_no_control_characters(tmp_path: Path) -> None:
    StartLog().keep(replace(report("miss"), reasons=("\x1b]0;title\x07",)), "team/\x1b[31mbert", tmp_path)
    shown = stats(tmp_path).stdout
    assert "\x1b" not in shown and "\x07" not in shown and "team/?[31mbert" in shown


def test_a_store_that_cannot_be_written_costs_a_service_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    StartLog().keep(report("hit"), "team/bert", tmp_path / "file")
    absent = tmp_path / "absent"
    shown = stats(absent)
    assert shown.returncode == 0 and "no start was recorded in the last 30 days" in shown.stdout
    assert not absent.exists(), "a question makes no store"
    wrong = stats(absent, "--days", "0")
    assert wrong.returncode == 2 and "1 to 30 days" in wrong.stderr
