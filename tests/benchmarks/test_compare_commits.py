"""Test that two commits are compared by the ratios in the reports of the benchmarks, in alternating order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare_commits
from benchmarks.compare_commits import (
    Checkout,
    compared,
    order,
    ratios_of_fills,
    ratios_of_registry,
    ratios_of_starts,
    table,
)
from benchmarks.hosts import ROOT, Failed

RESULTS = ROOT / "benchmarks" / "results"


def _report(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_the_ratios_come_from_the_reports() -> None:
    report = _report("cold_start")
    starts = ratios_of_starts(report)
    assert len(starts) == 3 * len(report["models"])
    [cold] = (
        row for row in report["models"]["bert/default"]["targets"] if row["what"] == "first output / cold"
    )
    assert starts["bert/default: cachesvc / cold"] == pytest.approx(cold["value"], abs=1e-3)
    report = _report("restore")
    fills = ratios_of_fills(report)
    assert len(fills) == 2 * len(report["runs"])
    kind = report["runs"][0]["filesystem"]
    assert fills[f"{kind}: first fill / cp -r"] == report["runs"][0]["ratio_to_cp"]["first fill"]
    report = _report("registry")
    column, registry = report["columns"]["embedded"], ratios_of_registry(report)
    assert registry["cached: requests a second / bare"] == column["requests"]["cached"]["of_bare"]
    downloads = [row["download_ratio"] for row in column["transfers"]]
    assert [ratio for name, ratio in registry.items() if name.startswith("download")] == downloads


def test_the_second_commit_begins_every_other_round() -> None:
    old, new = (Checkout(Path(name), name, name) for name in ("old", "new"))
    assert [order(old, new, number)[0].commit for number in range(4)] == ["old", "new", "old", "new"]


def test_overlapping_ranges_are_noise_and_other_ranges_are_not() -> None:
    old = [{"start": 1.0, "fill": 1.0}, {"start": 1.2, "fill": 1.1}]
    new = [{"start": 1.15, "fill": 2.0}, {"start": 1.3, "fill": 2.2}]
    comparison = compared(old, new)
    assert comparison["start"]["within_noise"] and not comparison["fill"]["within_noise"]
    assert comparison["fill"]["change"] == pytest.approx(1.0)
    commits = {which: {"commit": which * 10, "subject": "a subject"} for which in ("old", "new")}
    lines = [*table({"commits": commits, "ratios": comparison})]
    assert lines[0] == "old  oldoldoldo  a subject"
    assert lines[2].endswith("within noise") and lines[3].endswith("+100.0%   DIFFERENT")


def test_a_missing_commit_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(Failed, match="rev-parse"),
        compare_commits._checkout("no-such-commit", tmp_path / "tree", keep=False),
    ):
        raise AssertionError("it was checked out")
    assert not (tmp_path / "tree").exists()
