"""Test the simulation of a rollout against what queues must do, and the errors that it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet import cost
from benchmarks.fleet.scenarios import Size
from benchmarks.fleet.simulation import RESULTS, Costs, Place, compare, curves, fit, main, measured, simulate
from benchmarks.hosts import ROOT

COSTS = Costs(registry=4.0, registry_base=40.0, starter=6.0, starter_base=100.0, mib=1.0)


def test_a_lone_pod_waits_for_its_own_work() -> None:
    [wait] = simulate(1, COSTS, Place())
    assert 0.5 * 0.150 <= wait <= 1.5 * 0.150


def test_the_last_of_many_waits_for_the_work_of_all() -> None:
    waits = simulate(1000, COSTS, Place(cores=2.0))
    assert len(waits) == 1000 and waits == sorted(waits)
    work = (1000 * (4.0 + 6.0) + 140) / 1000 / 2.0
    assert waits[-1] == pytest.approx(work, rel=0.05)


def test_the_link_bounds_a_fleet_whatever_its_cores_are() -> None:
    slow = simulate(500, COSTS, Place(replicas=100, link=10.0))
    assert slow[-1] >= 500 * COSTS.mib / 10.0


def test_more_replicas_are_faster_until_the_link_is_full() -> None:
    last = [simulate(3000, COSTS, Place(replicas=number))[-1] for number in (1, 3, 10)]
    assert last[0] > 2 * last[1] > 2 * last[2] / 2 and last[2] >= 3000 * COSTS.mib / Place().link


def test_a_cold_fleet_waits_for_one_compile_which_one_pod_spends() -> None:
    waits = simulate(50, COSTS, Place(), compile_seconds=8.0)
    assert len(waits) == 49 and waits[0] > 8.0


def row(starts: int, registry_ms: float, starter_ms: float, wait: float) -> dict[str, Any]:
    return {
        "scenario": "warm rollout",
        "starts": starts,
        "restored": starts,
        "MiB": float(starts),
        "registry_ms": registry_ms,
        "starter_ms": starter_ms,
        "cores": 1.0,
        "load": 1.0,
        "MiB_per_s": 100.0,
        "wait_p50_s": wait / 2,
        "wait_max_s": wait,
    }


def test_costs_are_a_straight_line_through_two_fleets() -> None:
    costs = fit([row(100, 4.4, 7.0, 1.0), row(10, 8.0, 16.0, 0.3)])
    assert (costs.registry, costs.registry_base) == (pytest.approx(4.0), pytest.approx(40.0))
    assert (costs.starter, costs.starter_base) == (pytest.approx(6.0), pytest.approx(100.0))
    assert costs.of(10) == (pytest.approx(0.008), pytest.approx(0.016))


def test_the_error_is_the_models_and_keeps_its_sign() -> None:
    [line] = compare([row(1000, 4.04, 6.1, 5.0)], COSTS, 0.0)
    assert line["max_simulated_s"] == pytest.approx(10.14, rel=0.05)
    assert line["max_error_percent"] == pytest.approx(102, abs=8)


def test_only_rows_with_costs_count_and_the_last_of_a_size() -> None:
    old = {key: value for key, value in row(10, 1.0, 1.0, 1.0).items() if key != "cores"}
    report = {
        "runs": [
            {"columns": {"embedded": [old, row(10, 2.0, 1.0, 1.0)]}},
            {"torch": [], "columns": {"embedded": [row(10, 3.0, 1.0, 1.0), row(100, 1.0, 1.0, 1.0)]}},
        ]
    }
    assert [(one["starts"], one["registry_ms"]) for one in measured(report, "warm rollout")] == [
        (10, 3.0),
        (100, 1.0),
    ]
    assert measured(report, "cold rollout") == []


def test_the_committed_simulation_is_of_the_committed_measurements() -> None:
    """Whoever measures a fleet anew runs the simulation anew."""
    report = json.loads((RESULTS / "fleet_simulation.json").read_text())
    fleet = json.loads((RESULTS / "fleet.json").read_text())
    for scenario, seconds in (("warm rollout", 0.0), ("cold rollout", Size().compile_seconds)):
        rows = measured(fleet, scenario)
        part = report["scenarios"][scenario]
        assert [line["starts"] for line in part["check"]] == [10, 100, 1000]
        assert part["check"] == compare(rows, fit(rows[:2]), seconds)


def test_a_curve_has_every_size_of_every_place() -> None:
    points = curves(COSTS, 0.0, 1.0)
    assert len(points) == 4 and {len(one) for one in points.values()} == {7}


def test_too_few_fleets_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"columns": {"embedded": [row(10, 1.0, 1.0, 1.0)]}}))
    monkeypatch.setattr("sys.argv", ["simulation", "--fleet", str(path)])
    assert main() == 2
    assert "three sizes are needed, has 1" in capsys.readouterr().err


def test_the_costs_in_the_documents_are_those_of_the_program() -> None:
    text = (ROOT / "docs" / "scale.md").read_text()
    assert "\n".join(cost.table(cost.Inputs(), cost.registry_seconds())) in text


def test_the_documents_have_the_measured_and_simulated_numbers() -> None:
    text = (ROOT / "docs" / "scale.md").read_text()
    report = json.loads((RESULTS / "fleet_simulation.json").read_text())
    for part in report["scenarios"].values():
        for line in part["check"]:
            assert f"{line['max_error_percent']:+.0f} %".replace("-0 ", "-0 ").lstrip("+") in text


def test_a_small_fleet_needs_one_registry_and_a_large_one_more_with_its_surge() -> None:
    inputs = cost.Inputs()
    assert cost.need(10, 0.005, inputs).replicas == 1 and cost.need(10, 0.005, inputs).services == 0
    assert cost.need(1000, 0.005, inputs).replicas == 3
    large = cost.need(100_000, 0.005, inputs)
    assert (large.at_once, large.replicas) == (10_000, 10)
    # A month has 30 days, with two packs of 10 MiB for each node a day.
    assert large.gib_month == pytest.approx(100_000 * 2 * 30 * 10 / 1024)
    assert large.total == large.machines + large.services + large.bucket


def test_a_price_is_an_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["cost", "--price", "vcpu_hour=4"])
    assert cost.main() == 0
    dear = capsys.readouterr().out
    assert dear != "\n".join(cost.table(cost.Inputs(), cost.registry_seconds())) + "\n"
    for wrong in ("vcpus=1", "redis=much"):
        monkeypatch.setattr("sys.argv", ["cost", "--price", wrong])
        assert cost.main() == 2
        assert wrong in capsys.readouterr().err
