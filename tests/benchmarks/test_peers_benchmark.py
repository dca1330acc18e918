"""Test that the verdict of the benchmark of agents follows from their numbers, and run it with few agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import ROOT, Registry
from benchmarks.node.agents import REASONS
from benchmarks.node.peers import Network, _summary
from benchmarks.node.relay import CountingRelay
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import PackRecord

LINE: dict[str, Any] = {
    "seconds": 1.0,
    "packs": 1,
    "from_registry": 0,
    "from_peers": 1000,
    "problem": "",
    **dict.fromkeys(REASONS, 0),
}


@pytest.mark.parametrize(
    ("passed", "lines", "lost", "broken"),
    [
        (500, [LINE] * 10, 0, []),
        (510, [LINE] * 10, 0, ["5.1% of all packs, 5% at most"]),
        (500, [LINE] * 9, 1, []),
        (500, [LINE] * 9, 0, ["1 agents have not their pack"]),
        (
            500,
            [*[LINE] * 9, {**LINE, "problem": "lost", "packs": 0}],
            0,
            ["1 agents have not their pack", "lost"],
        ),
    ],
)
def test_a_broken_promise_of_agents_is_named(
    passed: int, lines: list[dict[str, Any]], lost: int, broken: list[str]
) -> None:
    pack = PackRecord(Digest.of(b""), 1000)
    network = Network(Registry("http://127.0.0.1:1"), CountingRelay(), Path(), 10, 5, 0.05, pack)
    row = _summary(network, 10, lost, lines, passed, network.most)
    assert (row["broken"], row["share"]) == (broken, passed / 10_000)


def test_few_agents_give_each_other_packs_also_where_some_lie(tmp_path: Path) -> None:
    words = ["--quick", "--rows", "peers", "peers, one in ten lies", "--json", str(tmp_path / "out.json")]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.node.peers", *words],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    honest, lying = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (honest["whole"], lying["whole"]) == (20, 18)
    assert honest["peer_bytes"] > 0
    assert lying["failures"]["lied"] > 0
