"""Test that the simulated week runs, and that coverage and alerts are right in its first hours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hosts import ROOT

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("redis-server", "prometheus", "promtool"))),
    reason="needs root, Redis and Prometheus",
)


def test_the_first_hours_of_a_week(tmp_path: Path) -> None:
    report = tmp_path / "week.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.week",
        "--days",
        "0.1",
        "--without-night",
        "--json",
        str(report),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    if "mount" in done.stderr and not report.exists():
        pytest.skip("needs the right to mount")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["questions"] >= 20 and found["agreed"] == found["questions"], found["disagreements"]
    fired = {row["alert"]: row["fired"] for row in found["alerts"]}
    assert len(fired) == 13 and fired["CachesvcTrustExpires"] and not fired["CachesvcRedisDown"]


def test_the_page_of_benchmarks_quotes_the_week_that_lies_here() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "week.json").read_text())
    text = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    judged = [*found["alerts"], *found["night"]]
    fired = {row["alert"] for row in judged if row["fired"]}
    assert not [row for row in judged if row["missing"] or row["false"]]
    for words in (
        f"{len(fired)} of {len(found['alerts'])} alerts fired for their causes",
        f"Before each of {found['questions']:,} starts",
        f"{found['agreed']:,} went as it said, and {found['without_model']['agreed']:,} as it said without",
    ):
        assert words in text, words
