"""Test the report: golden files of its Markdown and plain forms, JSON that parses, exit statuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from cachesvc.warm import report
from cachesvc.warm.phase import GraphBreak
from cachesvc.warm.results import Numbers, Outcome
from cachesvc_client.canary.tolerance import Compared
from cachesvc_client.hooks.counters import Observation

GOLDEN = Path(__file__).parent / "golden"

WARM = Outcome(
    "bert/float32/default",
    "warm",
    numbers=Numbers(28.0, 28.012, 0.012, 0.33, 0.0151, 1.4, 0.0121, 1.2583, 8930, 347),
    files_before=30,
    files_after=24,
    bytes_before=1_260_000,
    bytes_after=1_100_000,
    pack_bytes=117_000,
    graph_breaks=(GraphBreak("Call to `print` | no tracing", "models.py:7", 2),),
    recompiles=("forward: tensor 'x' size mismatch at index 0. expected 2, actual 3",),
    compared={"short": Compared(2.5e-06, 3.1, 0.0031), "drop": Compared(note="random")},
    observed=Observation(fx_hits=1),
    replays=2,
    finalised=True,
    revision="sha256:" + "0" * 64,
    notes=("a note",),
    seconds=60.0,
)
OUTCOMES = [
    WARM,
    Outcome("vit/default", "fresh", ("published already",), files_after=3, bytes_after=20, pack_bytes=10),
    Outcome(
        "llama/default",
        "failed",
        ("compiled output differs <a>", "tuned 2 kernels"),
        numbers=Numbers(1.0, 1.0, 2.0, 0.1, 1.0, None, None, 0.5),
        compared={"short": Compared(math.nan, 1.0, 0.1)},
    ),
]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("report.md", report.markdown("team/bert:latest", OUTCOMES)),
        ("report.txt", "\n".join(report.lines(OUTCOMES)) + "\n"),
    ],
)
def test_the_report_equals_its_golden_files(name, text):
    assert text == (GOLDEN / name).read_text()


def test_each_row_of_the_markdown_table_has_all_columns():
    rows = [line for line in report.markdown("a/b", OUTCOMES).splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {len(report.COLUMNS) + 1}
    assert set(report.cells(WARM)) == set(report.COLUMNS) >= set(report.TERMINAL_COLUMNS)


def test_the_json_form_holds_numbers_and_parses():
    document = json.loads(
        json.dumps(report.document("team/bert", "w.toml", OUTCOMES, {"torch": "2.13.0"}), allow_nan=False)
    )
    assert document["format"] == "cachesvc.warm/1"
    assert (document["warm"], document["exit_status"]) == (False, 9)
    bert, _, llama = document["targets"]
    assert bert["numbers"]["break_even"] == 8930
    assert bert["graph_breaks"][0]["where"] == "models.py:7"
    assert llama["compared"]["short"]["difference"] is None


def outcome(status: str, error_status: int = 0) -> Outcome:
    return Outcome("x", status, error_status=error_status)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], 0),
        ([outcome("warm"), outcome("fresh")], 0),
        ([outcome("warm"), outcome("cold")], 9),
        ([outcome("warm"), outcome("failed")], 9),
        ([outcome("failed", 6), outcome("warm")], 6),
        ([outcome("failed", 6), outcome("failed", 6)], 6),
        ([outcome("failed", 6), outcome("failed")], 9),
        ([outcome("warm"), outcome("cancelled"), outcome("failed", 6)], 130),
    ],
)
def test_each_outcome_has_its_exit_status(outcomes, expected):
    assert report.exit_status(outcomes) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (123.4, "123 s"),
        (28.41, "28.4 s"),
        (0.0123, "12.3 ms"),
        (4.56e-5, "45.6 us"),
        (0.0, "0 us"),
    ],
)
def test_seconds_are_formatted(value, text):
    assert report.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1_260_000, "1.26 MB"), (117_000, "117 kB"), (2 * 10**12, "2000 GB")],
)
def test_sizes_are_formatted(value, text):
    assert report.size(value) == text
