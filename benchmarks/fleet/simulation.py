"""Simulate a rollout of many pods from the costs that real starters had, and compare both where both exist.

``python -m benchmarks.fleet.simulation``. Input: the rows that ``python -m benchmarks.fleet`` measured over
one embedded registry (`benchmarks/results/fleet.json`). The CPU time of a start grows with the number of
starts as a straight line, which is fitted to the two smaller fleets; the largest fleet is predicted. Output:
the errors against every measured fleet, curves up to 10,000 pods, and a picture.

The model: a start asks, downloads and checks, in ``STEPS`` steps. Each step is work at the registry (one core
for each replica, first come first served) and work of the starter; the bytes go over one link in turn. On the
machine of the benchmark, registry and starters share the cores that they had; in a cluster each pod has a
core of its own.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.conditions import commit, now
from benchmarks.hosts import ROOT

from .scenarios import Size

RESULTS = ROOT / "benchmarks" / "results"
STEPS = 3
"""Steps of a start, in each of which it waits for its turn: resolve, download, check."""
PODS = (10, 30, 100, 300, 1000, 3000, 10_000)
"""Sizes of the simulated fleets."""
LINK_MIB_S = 1192.0
"""MiB a second of the link of a registry or bucket in a cluster: 10 Gbit/s, an assumption."""
SEED = 1


@dataclass(frozen=True)
class Costs:
    """What a start costs. Milliseconds of CPU: ``registry`` and ``starter`` for each start, ``registry_base``
    and ``starter_base`` once for a fleet. ``mib``: MiB of the pack."""

    registry: float
    registry_base: float
    starter: float
    starter_base: float
    mib: float

    def of(self, pods: int) -> tuple[float, float]:
        """Return the seconds of CPU of one start in a fleet of that size: of the registry, and of the pod."""
        return (
            (self.registry + self.registry_base / pods) / 1000,
            (self.starter + self.starter_base / pods) / 1000,
        )


@dataclass(frozen=True)
class Place:
    """Where a fleet starts. ``replicas``: of the registry. ``cores``: shared by registry and starters;
    ``None``: each replica and each pod has a core of its own. ``link``: MiB a second for all."""

    replicas: int = 1
    cores: float | None = None
    link: float = LINK_MIB_S


class Station:
    """Serves jobs in the order in which they come, with a number of servers."""

    def __init__(self, servers: int) -> None:
        self._free = [0.0] * servers

    def serve(self, arrival: float, seconds: float) -> float:
        """Return when a job is over that comes at ``arrival``. Calls come in the order of their arrivals."""
        begin = max(arrival, heapq.heappop(self._free))
        heapq.heappush(self._free, begin + seconds)
        return begin + seconds


def simulate(pods: int, costs: Costs, place: Place, compile_seconds: float = 0.0) -> list[float]:
    """Return the seconds that each pod of a fleet waits, sorted.

    ``compile_seconds``: 0 for a warm fleet; else one pod compiles for so long, and the others begin their
    steps when it has published.
    """
    chance = random.Random(SEED)
    of_registry, of_starter = costs.of(pods)
    registry, link = Station(place.replicas), Station(1)
    shared = None if place.cores is None else Station(1)
    events = [(compile_seconds, number, 0) for number in range(pods - (compile_seconds > 0))]
    heapq.heapify(events)
    waits = []
    while events:
        moment, number, step = heapq.heappop(events)
        if step == STEPS:
            waits.append(moment)
            continue
        # Unlike starts: a step takes between half and one and a half of its mean.
        share = chance.uniform(0.5, 1.5) / STEPS
        if shared is not None and place.cores is not None:
            end = shared.serve(moment, share * (of_registry + of_starter) / place.cores)
        else:
            end = registry.serve(moment, share * of_registry) + share * of_starter
        if step == 1:
            end = max(end, link.serve(moment, costs.mib / place.link))
        heapq.heappush(events, (end, number, step + 1))
    return sorted(waits)


def fit(rows: Sequence[dict[str, Any]]) -> Costs:
    """Return the costs of the straight lines through two measured fleets of different sizes."""
    few, many = sorted(rows, key=lambda row: int(row["starts"]))
    sizes = few["starts"], many["starts"]

    def line(name: str) -> tuple[float, float]:
        totals = [row[name] * row["starts"] for row in (few, many)]
        slope = (totals[1] - totals[0]) / (sizes[1] - sizes[0])
        return slope, max(0.0, totals[0] - slope * sizes[0])

    mib = many["MiB"] / max(1, many["restored"])
    return Costs(*line("registry_ms"), *line("starter_ms"), mib)


def measured(report: dict[str, Any], scenario: str) -> list[dict[str, Any]]:
    """Return the rows of a scenario over an embedded registry whose costs were measured, by size; of one size
    the last."""
    rows: dict[int, dict[str, Any]] = {}
    for run in report.get("runs", [report]):
        for row in run.get("columns", {}).get("embedded", []):
            if row["scenario"] == scenario and "cores" in row:
                rows[row["starts"]] = row
    return [rows[size] for size in sorted(rows)]


def compare(rows: Iterable[dict[str, Any]], costs: Costs, compile_seconds: float) -> list[dict[str, Any]]:
    """Return for each measured fleet what was measured, what the model says, and the errors in percent. The
    cores are those that the measured fleet had."""
    lines = []
    for row in rows:
        place = Place(cores=row["cores"], link=row["MiB_per_s"])
        waits = simulate(row["starts"], costs, place, compile_seconds)
        line = {"starts": row["starts"], "load": row["load"], "cores": row["cores"]}
        for name, share in (("p50", 0.5), ("max", 1.0)):
            real, said = row[f"wait_{name}_s"], waits[min(len(waits) - 1, int(share * len(waits)))]
            line |= {f"{name}_measured_s": real, f"{name}_simulated_s": round(said, 2)}
            line[f"{name}_error_percent"] = round(100 * (said - real) / real, 1)
        lines.append(line)
    return lines


def curves(costs: Costs, compile_seconds: float, cores: float) -> dict[str, list[dict[str, float]]]:
    """Return the simulated waits by size of the fleet: on the machine of the benchmark with its median
    ``cores``, and in a cluster with 1, 3 and 10 replicas."""
    places = {
        "this machine": Place(cores=cores),
        **{f"cluster, {n} replica{'s' if n > 1 else ''}": Place(replicas=n) for n in (1, 3, 10)},
    }
    result: dict[str, list[dict[str, float]]] = {}
    for name, place in places.items():
        result[name] = []
        for pods in PODS:
            waits = simulate(pods, costs, place, compile_seconds)
            p50 = round(statistics.median(waits), 2)
            result[name].append({"pods": pods, "p50_s": p50, "max_s": round(waits[-1], 2)})
    return result


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the simulated curves and the measured points."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(report["scenarios"]), figsize=(11, 4.6), sharey=True)
    for plot, (scenario, part) in zip(axes, report["scenarios"].items(), strict=True):
        for name, points in part["curves"].items():
            xs, ys = [one["pods"] for one in points], [one["max_s"] for one in points]
            plot.plot(
                xs, ys, "-" if name == "this machine" else "--", label=f"simulated: {name}", linewidth=1
            )
        at = [line["starts"] for line in part["check"]]
        plot.plot(at, [line["max_measured_s"] for line in part["check"]], "ko", label="measured: longest")
        plot.plot(
            at, [line["max_simulated_s"] for line in part["check"]], "r+", label="simulated with its cores"
        )
        plot.set_xscale("log")
        plot.set_yscale("log")
        plot.set_xlabel("pods that start at once")
        plot.set_title(f"{scenario}, pack of {part['costs']['mib']:.0f} MiB", fontsize=9)
        plot.grid(visible=True, which="major", linewidth=0.3)
    axes[0].set_ylabel("seconds that the last pod waits")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main() -> int:
    options = _options()
    source = json.loads(options.fleet.read_text())
    report: dict[str, Any] = {"date": now(), "commit": commit(), "link_MiB_s": LINK_MIB_S, "scenarios": {}}
    for scenario, compile_seconds in (("warm rollout", 0.0), ("cold rollout", options.compile_seconds)):
        rows = measured(source, scenario)
        if len(rows) < 3:
            print(
                f"error: {options.fleet}: {scenario}: three sizes are needed, has {len(rows)}",
                file=sys.stderr,
            )
            return 2
        costs = fit(rows[:2])
        cores = statistics.median(row["cores"] for row in rows[1:])
        report["scenarios"][scenario] = {
            "fitted_to": [row["starts"] for row in rows[:2]],
            "costs": {name: round(value, 2) for name, value in vars(costs).items()},
            "check": compare(rows, costs, compile_seconds),
            "curves": curves(costs, compile_seconds, cores),
        }
        for line in report["scenarios"][scenario]["check"]:
            print(f"{scenario}: {line}")
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    draw(report, options.picture)
    print(f"written: {options.json}, {options.picture}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.simulation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--fleet", type=Path, default=RESULTS / "fleet.json", help="measured fleets")
    seconds = Size().compile_seconds
    parser.add_argument("--compile-seconds", type=float, default=seconds, help="of the measured cold fleets")
    parser.add_argument("--json", type=Path, default=RESULTS / "fleet_simulation.json")
    parser.add_argument("--picture", type=Path, default=RESULTS / "fleet_simulation.png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
