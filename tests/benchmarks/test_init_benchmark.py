"""Test that the page quotes the run of foreign programs, and that every program is in it."""

from __future__ import annotations

import json
import re

from benchmarks.hosts import ROOT
from benchmarks.init.__main__ import AIM, PROGRAMS
from benchmarks.init.table import RESULT, table


def test_the_page_has_the_table_of_the_run() -> None:
    report = json.loads(RESULT.read_text())
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert table(report) in page, "python -m benchmarks.init.table"
    rows = report["programs"]
    assert [row["program"] for row in rows] == sorted(path.stem for path in PROGRAMS.glob("*.py"))
    green = sum(row["green"] for row in rows)
    assert report["green"] == green >= AIM
    assert f"**{green} of {len(rows)}**" in page


def test_a_program_is_green_only_if_its_entries_are_warm() -> None:
    for row in json.loads(RESULT.read_text())["programs"]:
        warm = [verdict.partition(":")[0] for verdict in row["verdicts"].values()]
        good = (row["init_status"], row["warm_status"]) == (0, 0) and set(warm) == {"warm"}
        assert row["green"] == good, row


def test_each_program_names_the_example_that_it_follows() -> None:
    for path in PROGRAMS.glob("*.py"):
        assert re.search(r'^"""[^"]*https://[^"]*"""', path.read_text()), path.name
