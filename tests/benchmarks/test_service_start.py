"""Test that the benchmark of a service's start measures what it says, and that its targets follow from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import hosts, service_start

from .programs import run_quick

STEPS = dict.fromkeys(service_start.STEPS, 0.1)
OBSERVED = {"traces": 0, "compilations": 0, "tuning_runs": 0, "compilers": 0}


def _result(first: float = 0.1, whole: float = 1.1, steady: float = 1.0, **changes: Any) -> dict[str, Any]:
    """Return what a model came to, of which some values of the start without traces are given."""

    def runs(first: float, whole: float, **changes: Any) -> list[dict[str, Any]]:
        seconds = STEPS | {"first": first, "whole": whole}
        return [{"seconds": seconds, "observed": OBSERVED, "difference": 0.0, "scale": 1.0, **changes}]

    methods = {method: service_start.summary(runs(1.0, 1.0)) for method in service_start.METHODS}
    methods[service_start.FRAMES] = service_start.summary(runs(first, whole, **changes))
    packs = {service_start.TRACING: 100, service_start.FRAMES: 150}
    return {
        "methods": methods,
        "packs": packs,
        "steady": {
            "without traces / PyTorch": service_start.spread([steady]),
            "without traces, again / PyTorch": service_start.spread([0.999, 1.0, 1.002]),
            "control / PyTorch": service_start.spread([0.999, 1.0, 1.001]),
        },
    }


def _missed(result: dict[str, Any], device: str = "cpu", mode: str = "default") -> list[str]:
    return [row["what"] for row in service_start.targets(result, device, mode) if not row["reached"]]


def test_targets_are_met_or_reported_as_not_met() -> None:
    assert _missed(_result()) == []
    assert _missed(_result(first=0.16)) == ["first call / PyTorch settled"]
    assert _missed(_result(whole=1.16)) == ["whole / eager's whole"]
    assert _missed(_result(steady=1.02)) == ["a steady call / PyTorch's"]
    assert _missed(_result(same=False)) == ["methods whose output is not the builder's"]
    for name in OBSERVED:
        assert _missed(_result(observed=OBSERVED | {name: 1})) == [
            "traces, compilations, tuning runs and compilers"
        ]
    heavy = _result() | {"packs": {service_start.TRACING: 100, service_start.FRAMES: 201}}
    assert _missed(heavy) == ["pack / the pack without frames"]


def test_a_steady_state_is_not_judged_where_its_control_varies() -> None:
    result = _result(steady=1.5)
    result["steady"]["control / PyTorch"] = service_start.spread([0.8, 1.0, 1.2])
    (row,) = (row for row in service_start.targets(result, "cpu", "default") if "steady" in row["what"])
    assert row["reached"] is None
    result["notes of warm"] = []
    result["steady"] |= {"seconds of a call": {"pytorch": 0.001}, "calls in a block": 5}
    result["targets"] = [row]
    assert any("unknown" in line for line in service_start.table("tiny", result))


def test_the_target_of_the_first_call_depends_on_device_and_mode() -> None:
    assert _missed(_result(first=0.2), "cuda:1", "default") == []
    assert _missed(_result(first=0.2), "cuda", "max-autotune") == ["first call / PyTorch settled"]


def test_a_spread_has_the_median_between_its_quartiles() -> None:
    assert service_start.spread([3.0, 1.0, 2.0, 5.0, 4.0]) == {
        "median": 3.0,
        "quartiles": [2.0, 4.0],
        "range": [1.0, 5.0],
    }
    assert service_start.spread([2.0])["quartiles"] == [2.0, 2.0]


@pytest.mark.long
@pytest.mark.compiles
def test_the_benchmark_measures_a_tiny_service(tmp_path: Path) -> None:
    report = run_quick("service_start.py", tmp_path)
    (models,) = json.loads(report.read_text()).values()
    methods = models["tiny/default"]["methods"]
    assert {name: row["traces"] for name, row in methods.items()} == {
        service_start.EAGER: 0,
        service_start.COLD: 1,
        service_start.SETTLED: 1,
        service_start.TRACING: 1,
        service_start.FRAMES: 0,
        service_start.ITSELF: 0,
    }
    assert methods[service_start.COLD]["compilations"] and methods[service_start.COLD]["compilers"]
    for name in service_start.RESTORING:
        assert methods[name]["compilations"] == methods[name]["compilers"] == 0 and methods[name]["same"]
    for row in methods.values():
        (run,) = row["runs"]
        steps = sum(run["seconds"].get(step, 0.0) for step in service_start.STEPS)
        assert -0.001 <= run["seconds"]["whole"] - steps < 0.5, "the steps are the whole"
    assert len(models["tiny/default"]["steady"]["blocks"]["frames"]) == 3
    assert str(hosts.ROOT) not in report.read_text() and str(tmp_path) not in report.read_text()
