"""Test that the registry's benchmark works, and that its verdict follows from its numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks import hosts, registry
from benchmarks.load import filling
from benchmarks.load.rates import Rate, summary
from cachesvc.domain.offers import withheld
from cachesvc.index.engine import open_sqlite
from cachesvc.index.entries.heads import Place
from cachesvc.index.tables import metadata
from cachesvc_client.wire.compare import Compatible, compare
from cachesvc_client.wire.names import Namespace, ShortName, Tag
from tests.services.process import absent

FOUND: dict[str, Any] = {
    "column": "production",
    "headline_entries": 100,
    "requests": {
        "bare": {"rate": 1000},
        "cached": {"of_bare": 0.5},
        "uncached, 10 entries": {"of_bare": 0.12},
        "uncached, 100 entries": {"of_bare": 0.11},
    },
    "transfers": [{"MiB": 1, "download_ratio": 0.9, "publish_ratio": 0.5}],
    "storm": {"lost": [], "dangling": [], "read": {"packs": 9}},
    "memory": {"pack_MiB": 2048, "after_MiB": 150},
}


def missed_targets(**changes: Any) -> list[str]:
    return [row["what"] for row in registry.targets({**deepcopy(FOUND), **changes}) if not row["reached"]]


def _requests(**changes: float) -> dict[str, Any]:
    rows = deepcopy(FOUND["requests"])
    for name, ratio in changes.items():
        rows[
            {"cached": "cached", "ten": "uncached, 10 entries", "hundred": "uncached, 100 entries"}[name]
        ] = {"of_bare": ratio}
    return {"requests": rows}


def test_targets_are_reached_or_reported_as_missed() -> None:
    assert missed_targets() == []
    assert missed_targets(**_requests(cached=0.39)) == ["cached resolves / bare endpoint"]
    assert missed_targets(**_requests(hundred=0.09)) == ["uncached resolves / bare endpoint"]
    assert missed_targets(**_requests(ten=0.2)) == ["fastest / slowest size of the index"]
    slow = [{"MiB": 1, "download_ratio": 0.7, "publish_ratio": 0.3}]
    assert missed_targets(transfers=slow) == ["download of 1 MiB / plain", "publish of 1 MiB / plain"]
    assert missed_targets(transfers=slow, column="embedded") == []
    for damage in ({"lost": ["a"]}, {"dangling": ["a"]}, {"read": {"wrong packs": 1}}):
        assert missed_targets(storm={**FOUND["storm"], **damage}) == ["lost, dangling or wrong"]
    assert missed_targets(memory={"pack_MiB": 2048, "after_MiB": 200}) != []


def test_a_ratio_compares_values_of_the_same_round() -> None:
    def rates(*values: float) -> list[Rate]:
        return [Rate(value, 1.0, 2.0, 100.0) for value in values]

    rows = summary({"bare": rates(100, 1000, 500), "cached": rates(50, 500, 250)})
    assert rows["cached"]["of_bare"] == 0.5 and rows["cached"]["rate"] == 250
    assert "of_bare" not in rows["bare"]


def test_a_filled_index_is_what_resolves_expect(tmp_path: Path) -> None:
    """Each name has as many fitting entries as the others, and the schema is as it was."""
    path = tmp_path / "index.sqlite3"
    open_sqlite(path).close()
    assert filling.fill_sqlite(path, 800).entries == 800
    index = open_sqlite(path)
    try:
        with index.look() as heads:
            for number in (0, 150, 199):
                namespace, name = filling.place(number)
                place = Place(Namespace(namespace), ShortName(name), Tag("latest"))
                [rows] = heads.few_under_each([place])
                verdicts = [compare(filling.FINGERPRINT, *map(json.loads, row.built_for)) for row in rows]
                assert [isinstance(verdict, Compatible) for verdict in verdicts].count(True) == 2
                assert len(rows) == filling.PER_NAME and all(row.envelope.size > 2000 for row in rows)
                assert [withheld(row) for row in rows] == [None] * filling.PER_NAME, "all are offered"
    finally:
        index.close()
    engine = sa.create_engine(f"sqlite:///{path}")
    indexes = {index["name"] for name in filling.TABLES for index in sa.inspect(engine).get_indexes(name)}
    assert indexes == {str(index.name) for name in filling.TABLES for index in metadata.tables[name].indexes}


@pytest.mark.long
def test_a_quick_run_measures_the_embedded_column_completely(tmp_path: Path) -> None:
    if shutil.which("wrk") is None:
        absent("wrk", "wrk")
    report = tmp_path / "results" / "registry.json"
    command = [sys.executable, "-m", "benchmarks.registry", "--quick", "--columns", "embedded"]
    result = subprocess.run(
        [*command, "--parts", "rates", "transfers", "storm", "--json", str(report)],
        cwd=hosts.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    column = json.loads(report.read_text())["columns"]["embedded"]
    assert {"bare", "cached", "uncached, 1000 entries"} <= set(column["requests"])
    assert all(row["rate"] > 0 and row["p99_ms"] >= row["p50_ms"] for row in column["requests"].values())
    [row] = column["transfers"]
    assert row["download"] > 0 and row["publish"] > 0
    storm = column["storm"]
    assert storm["published"] and storm["read"]["packs"] and storm["collected"]["runs"] > 1
    assert (storm["lost"], storm["dangling"]) == ([], [])
    assert str(hosts.ROOT) not in report.read_text() and str(tmp_path) not in report.read_text()


def test_a_missing_load_generator_is_named(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.registry",
        "--quick",
        "--columns",
        "embedded",
        "--parts",
        "rates",
    ]
    result = subprocess.run(
        [*command, "--json", str(tmp_path / "x.json")],
        cwd=hosts.ROOT,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(hosts.ROOT / "client")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr == "error: wrk is not installed (apt-get install wrk)\n"
    assert not (tmp_path / "x.json").exists()
