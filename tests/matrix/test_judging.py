"""Test that the matrix can fail: each expectation refuses the outcomes that differ from it."""

from __future__ import annotations

import pytest

from .rows import Row
from .world import judge_process

HIT = {
    "state": "hit",
    "reasons": [],
    "differences": [],
    "compiled": 0,
    "tuned": 0,
    "compilers": 0,
    "trapped": "",
    "difference": 0.0,
    "eps": 1e-7,
}
NAMED = {
    "state": "inert",
    "reasons": ["dtype: here a, entry b: mend"],
    "differences": ["dtype"],
    "explained": ["dtype"],
    "compiled": 1,
}


def problem(expect: str, factor: str = "", **fields: object) -> str:
    return judge_process(Row("row", expect, factor, "group"), {**HIT, **fields}).problem


def test_an_expected_outcome_is_no_problem():
    assert problem("hit") == problem("invisible") == ""
    assert problem("compiles", "dtype", **NAMED) == ""
    assert problem("retraced", "dtype", **{**NAMED, "compiled": 0, "state": "hit"}) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "unused"},
        {"compiled": 1},
        {"tuned": 1},
        {"compilers": 1},
        {"trapped": "gcc -c\n"},
        {"difference": 1e-3},
        {"difference": float("nan")},
        {"error": "it died"},
    ],
)
def test_a_false_or_silent_hit_is_found(changes):
    assert problem("hit", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"compiled": 0},
        {"state": "hit"},
        {"reasons": []},
        {"reasons": ["shapes: here a, entry b"]},
        {"differences": ["shapes", "dtype"]},
        {"explained": []},
        {"difference": 1.0},
    ],
)
def test_a_miss_without_its_reason_is_found(changes):
    assert problem("compiles", "dtype", **{**NAMED, **changes})


@pytest.mark.parametrize("changes", [{"compiled": 0}, {"state": "hit"}, {"difference": 1.0}])
def test_a_hit_where_nothing_may_be_reused_is_found(changes):
    assert not problem("uncached", **NAMED)
    assert problem("uncached", **{**NAMED, **changes})
