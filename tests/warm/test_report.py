"""Test the report: golden files of its Markdown and plain forms, JSON that parses, exit statuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from cachesvc.warm.report import render as report
from cachesvc.warm.report.head import ReportHead, project_commit, use_line
from cachesvc.warm.verdict.results import Numbers, Outcome
from cachesvc.warm.worker.phase import GraphBreak
from cachesvc.warm.worker.steady import Steady
from cachesvc_client.canary.tolerance import Compared
from cachesvc_client.hooks.counters import Observation, TorchWork
from cachesvc_client.wire.names import Name

GOLDEN = Path(__file__).parent / "golden"

WARM = Outcome(
    "bert/float32/default",
    "warm",
    numbers=Numbers(
        compile=28.0,
        first_call=28.012,
        steady=0.012,
        eager_first=0.33,
        eager_steady=0.0151,
        restored_first=1.4,
        steady_spread=Steady(0.012, 0.0119, 0.0122),
        eager_spread=Steady(0.0151, 0.0141, 0.0199),
        speed_up=1.2583,
        faster="compiled",
        break_even=8930,
        restored_break_even=347,
    ),
    files_before=30,
    files_after=24,
    bytes_before=1_260_000,
    bytes_after=1_100_000,
    pack_bytes=117_000,
    graph_breaks=(GraphBreak("Call to `print` | no tracing", "models.py:7", 2),),
    recompiles=("forward: tensor 'x' size mismatch at index 0. expected 2, actual 3",),
    compared={"short": Compared(2.5e-06, 3.1, 0.0031), "drop": Compared(note="random")},
    observed=Observation(torch=TorchWork(fx_hits=1)),
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
        numbers=Numbers(
            compile=1.0,
            first_call=1.0,
            steady=0.057,
            eager_first=0.1,
            eager_steady=0.0011,
            steady_spread=Steady(0.057, 0.056, 0.058),
            eager_spread=Steady(0.0011, 0.0011, 0.0011),
            speed_up=0.0193,
            faster="eager",
        ),
        compared={"short": Compared(math.nan, 1.0, 0.1)},
    ),
    Outcome("bad/default", "failed", ("models:raising raised ValueError: no checkpoint",)),
]
HEAD = ReportHead(
    "team/bert:latest",
    "w.toml",
    {"torch": "2.13.0+cpu", "cpu_isa": "avx512", "python_abi": "cpython-311"},
    "3.11.9",
    "https://cache.example",
    "a" * 40,
    "cachesvc run team/bert -- python serve.py",
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("report.md", report.markdown(HEAD, OUTCOMES)),
        ("report.txt", "\n".join(report.lines(HEAD, OUTCOMES)) + "\n"),
    ],
)
def test_the_report_equals_its_golden_files(name, text):
    assert text == (GOLDEN / name).read_text()


def test_each_row_of_the_markdown_table_has_all_columns():
    rows = [line for line in report.markdown(HEAD, OUTCOMES).splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {len(report.COLUMNS) + 1}
    assert set(report.cells(WARM)) == set(report.COLUMNS) >= set(report.TERMINAL_COLUMNS)


def test_the_json_form_holds_numbers_and_parses():
    document = json.loads(json.dumps(report.document(HEAD, OUTCOMES), allow_nan=False))
    assert document["format"] == "cachesvc.warm/2"
    assert (document["warm"], document["exit_status"]) == (False, 9)
    bert, _, llama, bad = document["targets"]
    assert bert["numbers"]["break_even"] == 8930
    assert bert["graph_breaks"][0]["where"] == "models.py:7"
    assert llama["compared"]["short"]["difference"] is None
    assert llama["notes"] == ["eager is faster here: 1.1 ms against 57 ms compiled"]
    assert bad["reasons"] == ["models:raising raised ValueError: no checkpoint"]
    assert (document["registry"], document["commit"]) == (HEAD.registry, HEAD.commit)
    assert document["environment"]["torch"] == "2.13.0+cpu"
    assert document["use"] == "cachesvc run team/bert -- python serve.py"


def test_times_that_cannot_be_told_apart_are_said_to_be_so():
    one, other = Steady(0.016, 0.012, 0.02), Steady(0.016, 0.015, 0.017)
    numbers = Numbers(1.0, 1.0, 0.016, 0.1, 0.016, 1.0, one, other, 1.0, "unclear")
    row = report.cells(replace(WARM, numbers=numbers))
    names = ("steady", "eager steady", "speed-up", "break-even", "restored break-even")
    assert [row[name] for name in names] == ["16 ms, noisy", "16 ms", "unclear", "unclear", "unclear"]
    assert report.speed_notes(numbers)[0] == (
        "compiled and eager calls cannot be told apart: 12 ms to 20 ms and 15 ms to 17 ms, so no break-even "
        "is given"
    )


def test_a_report_in_which_nothing_was_measured_has_no_table_and_no_line_to_use_it():
    failed = [OUTCOMES[3]]
    text = report.markdown(HEAD, failed)
    assert "|" not in text and "Use it" not in text and "no checkpoint" in text
    assert not any(line.startswith("use it") for line in report.lines(HEAD, failed))
    assert report.document(HEAD, failed)["use"] == ""


def test_the_head_names_the_commit_of_the_checkout_and_how_to_use_the_name(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("b" * 40 + "\n")
    (tmp_path / ".git" / "config").write_text("")
    spec = tmp_path / "warm.toml"
    head = ReportHead.of(Name.parse("team/bert"), spec, {"torch": "2.13.0"}, "http://registry")
    assert head.use == "cachesvc run team/bert -- python serve.py"
    assert use_line(Name.parse("team/bert:v2")) == "cachesvc run team/bert:v2 -- python serve.py"
    assert project_commit(spec, {}) == "b" * 40
    assert project_commit(spec, {"GITHUB_SHA": "c" * 40}) == "c" * 40
    assert project_commit(Path("/nowhere/warm.toml"), {}) == ""


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
