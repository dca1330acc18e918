"""The matrix can fail: each expectation is refused by an outcome that is not it."""

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


def problem(expect: str, factor: str = "", **seen: object) -> str:
    return judge_process(Row("row", expect, factor, "group"), {**HIT, **seen}).problem


def test_what_is_expected_is_no_problem():
    assert problem("hit") == problem("invisible") == ""
    assert problem("compiles", "dtype", **NAMED) == ""
    assert problem("retraced", "dtype", **{**NAMED, "compiled": 0, "state": "hit"}) == ""


@pytest.mark.parametrize(
    "seen",
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
def test_a_false_or_silent_hit_is_found(seen):
    assert problem("hit", **seen)


@pytest.mark.parametrize(
    "seen",
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
def test_a_miss_without_its_reason_is_found(seen):
    assert problem("compiles", "dtype", **{**NAMED, **seen})
