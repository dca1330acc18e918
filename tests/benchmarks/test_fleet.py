"""Test that the benchmark of a fleet works, and that its verdict follows from its numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet.__main__ import missed, missed_with_torch
from benchmarks.fleet.relay import Relay
from benchmarks.fleet.scenarios import SCENARIOS, Scenario, Size, summary, within_bound
from benchmarks.fleet.torch_services import summary as services_summary
from benchmarks.hosts import ROOT
from tests.services.process import free_port

ROW: dict[str, Any] = {"late": 0, "compiles": 1, "errors": 0}


@pytest.mark.parametrize(
    ("scenario", "changes", "word"),
    [
        (Scenario("x"), {}, ""),
        (Scenario("x"), {"compiles": 2}, "2 compiles, 1 at most"),
        (Scenario("x", kill_holder=True), {"compiles": 2}, ""),
        (Scenario("x", warm=True), {}, "1 compiles, 0 at most"),
        (Scenario("x"), {"errors": 1}, "errors"),
        (Scenario("x", fault="partition"), {"compiles": 50, "errors": 50}, ""),
        (Scenario("x", fault="partition"), {"late": 1}, "deadline"),
    ],
)
def test_a_broken_promise_is_named(scenario: Scenario, changes: dict[str, Any], word: str) -> None:
    broken = missed(scenario, {**ROW, **changes})
    assert (word in broken[0] and len(broken) == 1) if word else broken == []


def test_starts_are_summed_up() -> None:
    start = {
        "restored": True,
        "compiled": False,
        "bytes": 1 << 20,
        "errors": [],
        "report": "counted",
        "why": "",
    }
    late = {
        **start,
        "restored": False,
        "compiled": True,
        "bytes": 0,
        "errors": ["http://h:1: no answer"],
        "report": "",
    }
    row = summary([{**start, "waited": 1.0}, {**start, "waited": 2.0}, {**late, "waited": 62.0}], 1, Size(3))
    assert (row["starts"], row["restored"], row["errors"], row["late"], row["MiB"]) == (3, 2, 1, 1, 2.0)
    assert (row["wait_p50_s"], row["wait_max_s"], row["said"]) == (2.0, 62.0, {"no answer": 1})


def test_the_relay_goes_to_the_next_replica_where_one_is_gone() -> None:
    import http.server
    import threading
    import urllib.request

    # A thread for each connection: the relay holds one open.
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    gone = f"127.0.0.1:{free_port()}"
    with Relay(gone, f"127.0.0.1:{server.server_port}").running() as relay:
        for _ in range(2):
            with urllib.request.urlopen(relay.url, timeout=10) as answer:
                assert answer.status == 200
        relay.holds = True
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(relay.url, timeout=0.5)
    server.shutdown()
    server.server_close()


@pytest.mark.servers
def test_of_fifty_starters_one_compiles_and_two_if_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.fleet",
        "--clients",
        "50",
        "--quick",
        "--columns",
        "embedded",
    ]
    result = subprocess.run(
        [*command, "--json", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    rows = json.loads(path.read_text())["columns"]["embedded"]
    assert [(row["scenario"], row["compiles"], row["errors"]) for row in rows] == [
        ("cold rollout", 1, 0),
        ("holder killed", 2, 0),
        ("warm rollout", 0, 0),
    ]
    assert [row["starts"] for row in rows] == [50] * 3 and {row["late"] for row in rows} == {0}
    assert [row["restored"] for row in rows] == [49, 49, 50]


def test_each_scenario_has_a_name_of_its_own() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


SERVICES: dict[str, Any] = {
    "policy": "eager",
    "holder_killed": False,
    "warm": False,
    "fault": "",
    "late": 0,
    "services": 8,
    "compiled": 1,
    "began_to_compile": 1,
    "hits": 7,
    "wrong": 0,
}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, ""),
        ({"compiled": 2, "hits": 6}, "2 compiled, 1 began to, 1 expected"),
        ({"began_to_compile": 2}, "1 compiled, 2 began to, 1 expected"),
        ({"compiled": 2, "began_to_compile": 2, "hits": 6, "holder_killed": True}, ""),
        ({"compiled": 0, "hits": 8}, "0 compiled"),
        ({"hits": 6}, "6 hits"),
        ({"wrong": 1}, "1 wrong outputs"),
        ({"late": 1}, "1 waited longer"),
        ({"fault": "partition", "compiled": 8, "began_to_compile": 8, "hits": 0}, ""),
        ({"fault": "partition", "hits": 6}, "6 hits"),
        ({"fault": "registry slow", "compiled": 2, "began_to_compile": 2, "hits": 6}, "1 expected"),
        ({"fault": "registry slow", "warm": True}, "0 expected"),
        ({"warm": True, "compiled": 0, "began_to_compile": 0, "hits": 8}, ""),
    ],
)
def test_a_broken_promise_of_real_processes_is_named(changes: dict[str, Any], word: str) -> None:
    broken = missed_with_torch({**SERVICES, **changes})
    assert word in broken[0] if word else broken == []


def test_a_start_may_take_one_and_a_half_times_its_compile_and_its_bytes() -> None:
    starts = [{"waited": 17.0, "bytes": 10}, {"waited": 19.0, "bytes": 10}]
    assert within_bound(starts, 8.0, 5.0) == {"bound_s": 18.0, "beyond_bound": 1}


def test_services_are_summed_up_with_those_that_were_killed() -> None:
    common = {
        "wrong": 0,
        "eager_p50_ms": 1.0,
        "compiled_p50_ms": 0.5,
        "longest": 0.1,
        "bytes": 0,
        "waited": 1,
    }
    holder = {**common, "compilations": 3, "state": "miss", "switch": 9.0, "first_call": 0.2}
    other = {**common, "compilations": 0, "state": "hit", "switch": 1.5, "first_call": 0.1, "bytes": 7}
    calls = [{**holder, "served_eagerly": 2, "eager_seconds": 0.1}]
    calls += [{**other, "served_eagerly": number, "eager_seconds": 12.0} for number in (100, 200)]
    row = services_summary(calls, killed=1)
    assert (row["services"], row["compiled"], row["hits"], row["bytes"]) == (4, 2, 2, 14)
    assert (row["compiled_call_s"], row["switch_max_s"], row["eager_calls"]) == (9.0, 1.5, 300)
    assert (row["first_call_max_s"], row["eager_s"], row["eager_p50_ms"]) == (0.1, 12.0, 1.0)
