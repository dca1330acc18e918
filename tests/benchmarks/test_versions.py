"""Test that the benchmark of versions tells of every model that is not as it must be."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks.versions import problems, summarise, table

OBSERVED = {"compilations": 0, "tuning_runs": 0, "compiler_processes": 0}
RUN = {"state": "hit", "observed": OBSERVED, "against_builder": {"equal": True}, "first": 1.0}
ENTRY: dict[str, Any] = {
    "hit": True,
    "warm": {"status": "warm", "against_eager": {"close": True}},
    "runs": {"ours": [RUN], "ours audited": [RUN]},
    "first": {"ours": 1.0, "local settled": 2.0},
}


def _version(entry: dict[str, Any]) -> dict[str, Any]:
    return {"python": "3.11.7", "models": {"bert": summarise(entry)}}


def test_a_model_that_is_as_it_must_be_is_no_problem() -> None:
    version = _version(ENTRY)
    assert problems(version) == []
    assert version["models"]["bert"]["ratio"] == 0.5
    header, line = table({"2.13.0": version})
    assert line.split() == ["2.13.0", "3.11.7", "1", "1", "0", "0", "1", "0.5"]
    assert len(header) == len(line)


def test_a_model_that_never_restored_has_no_ratio() -> None:
    entry = {**ENTRY, "hit": False, "runs": {}, "first": {"local settled": 2.0}}
    assert "ratio" not in summarise(entry)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("hit",), False),
        (("warm", "against_eager", "close"), False),
        (("warm",), {"status": "failed", "reasons": ["it raised"]}),
        (("runs", "ours audited", 0, "against_builder", "equal"), False),
        (("runs", "ours", 0), {"error": "status 1: killed"}),
        (("runs",), {}),
        (("compilers_called",), ["g++ main.cpp"]),
        (("first", "local settled"), 1.2),
    ],
)
def test_each_deviation_is_a_problem(path: tuple[Any, ...], value: Any) -> None:
    entry = copy.deepcopy(ENTRY)
    *parents, last = path
    place: Any = entry
    for parent in parents:
        place = place[parent]
    place[last] = value
    version = _version(entry)
    assert len(problems(version)) == 1
    assert table({"2.13.0": version})[-1].startswith("torch 2.13.0, bert: ")
