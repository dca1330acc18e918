"""Measure how a fleet starts at once: compiles, errors, waits, and what the registry spends.

Two columns: *embedded* (one registry over SQLite and a folder), *production* (three replicas over PostgreSQL,
Redis and Ceph's S3, all started here on loopback). The starters run the client's own code in threads of a few
processes; their compile is a sleep. A third part, *torch*, starts a few real processes with torch over each
column, under CACHESVC_WAIT=wait and eager. Exit status 1 if a start ended later than its deadline,
or more compiled than one (two where the holder is killed). Usage: ``python -m benchmarks.fleet`` (``--clients
50 --quick``: a look).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.conditions import commit, hardware, now
from benchmarks.hosts import ROOT, Failed, use_this_tree
from benchmarks.load.columns import Embedded, Production, column
from cachesvc.cli.signals import interruptible

from .relay import FAULTS
from .replicas import CLAIM_SECONDS, Replicas, replicas
from .scenarios import SCENARIOS, Scenario, Size, run
from .torch_services import Rollout, run_services

REPLICAS = 3
"""Replicas of the column production."""
FAULT_DEADLINE = 60.0
"""Seconds that a process with torch may wait where the registry fails."""
TORCH = (
    *(Rollout(policy, kill_holder) for policy in ("wait", "eager") for kill_holder in (False, True)),
    *(
        Rollout(policy, warm=warm, fault=fault, deadline=FAULT_DEADLINE)
        for policy, warm in (("wait", False), ("eager", False), ("wait", True))
        for fault in FAULTS[1:]
    ),
)
"""Rollouts of the processes with torch."""
QUICK = ("cold rollout", "holder killed", "warm rollout")
"""Scenarios of a quick look."""
SIMULATED = ("cold rollout", "warm rollout")
"""Scenarios that `simulation` predicts."""


def main() -> int:
    options = _options()
    use_this_tree()
    report: dict[str, Any] = {
        "date": now(),
        "commit": commit(),
        "hardware": hardware(),
        "load_before": round(os.getloadavg()[0], 1),
        "claim_seconds": CLAIM_SECONDS,
        "torch": [],
        "columns": {},
    }
    try:
        with interruptible():
            for name in options.columns:
                rows = report["columns"][name] = []
                with column(name) as where:
                    for row in _torch_rows(where, options):
                        report["torch"].append({"column": name, **row})
                        print(f"torch, {name:10} {json.dumps(row)}", flush=True)
                        _write(options.json, report)
                    for row in _rows(name, where, options):
                        rows.append(row)
                        _show(name, row)
                        _write(options.json, report)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"written: {options.json}")
    broken = [line for scenario, row in _measured(report) for line in missed(scenario, row)]
    broken += [line for row in report["torch"] for line in missed_with_torch(row)]
    for line in broken:
        print(f"missed: {line}", file=sys.stderr)
    return int(bool(broken))


def _torch_rows(where: Embedded | Production, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for rollout in TORCH if options.torch else ():
        with _started(where) as (folder, served):
            yield run_services(options.torch, rollout, folder, replicas=served.replicas)


def _rows(
    column_name: str, where: Embedded | Production, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for scenario, size in _fleets(column_name, options):
        with _started(where) as (folder, served):
            yield run(scenario, size, served, folder)


@contextmanager
def _started(where: Embedded | Production) -> Iterator[tuple[Path, Replicas]]:
    """Run new replicas for the length of the block, with a folder for what starts there."""
    with (
        tempfile.TemporaryDirectory(prefix="cachesvc-fleet-") as folder,
        replicas(where, Path(folder, "registry"), REPLICAS) as served,
    ):
        yield Path(folder), served


def _fleets(column_name: str, options: argparse.Namespace) -> Iterator[tuple[Scenario, Size]]:
    """Yield the scenarios of a column, each with the size of its fleet. The smaller fleets are points for the
    simulation, which has an embedded registry."""
    largest = max(options.clients)
    for clients in sorted(options.clients):
        if options.quick:
            size = Size(clients, processes=2, compile_seconds=2.0, deadline=30.0, pack_bytes=64 << 10)
        else:
            size = Size(clients)
        names: Sequence[str] = SIMULATED if column_name == "embedded" else ()
        if clients == largest:
            names = options.scenarios or (QUICK if options.quick else [one.name for one in SCENARIOS])
        yield from ((scenario, size) for scenario in SCENARIOS if scenario.name in names)


def missed(scenario: Scenario, row: dict[str, Any]) -> list[str]:
    """Return which promises a row breaks. Only where the registry answers, nothing but the holder
    compiles."""
    broken = []
    if row["late"]:
        broken.append("a start ended later than its deadline")
    if not scenario.fault:
        most = 0 if scenario.warm else 2 if scenario.kill_holder else 1
        if row["compiles"] > most:
            broken.append(f"{row['compiles']} compiles, {most} at most")
        if row["errors"]:
            broken.append("errors")
    return broken


def missed_with_torch(row: dict[str, Any]) -> list[str]:
    """Return which promises a row of real processes breaks: how many compile, right outputs, no pause of the
    calls that run eagerly, no wait longer than the deadline. A registry that is killed or cut off makes
    services compile, up to all."""
    broken, what = [], f"torch, {row['policy']}{', ' if row['fault'] else ''}{row['fault']}"
    expected = 0 if row["warm"] else 2 if row["holder_killed"] else 1
    most = row["services"] if row["fault"] in ("registry killed", "partition") else expected
    if not (expected <= row["compiled"] == row["began_to_compile"] <= most):
        broken.append(
            f"{what}: {row['compiled']} compiled, {row['began_to_compile']} began to, {expected} expected"
        )
    if row["hits"] != row["services"] - row["compiled"]:
        broken.append(f"{what}: {row['hits']} hits")
    if row["wrong"]:
        broken.append(f"{what}: {row['wrong']} wrong outputs")
    if row["late"]:
        broken.append(f"{what}: {row['late']} waited longer than their deadline")
    return broken


def _measured(report: dict[str, Any]) -> list[tuple[Scenario, dict[str, Any]]]:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    return [(by_name[row["scenario"]], row) for rows in report["columns"].values() for row in rows]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--clients",
        type=int,
        nargs="+",
        default=[10, 100, 1000],
        help="starters, at least 2; of all sizes but the largest only what the simulation is compared with; "
        "default: 10 100 1000",
    )
    parser.add_argument("--quick", action="store_true", help="short compiles, small packs, three scenarios")
    parser.add_argument("--torch", type=int, default=8, help="processes with torch; 0: none; default: 8")
    both = ("embedded", "production")
    parser.add_argument("--columns", nargs="*", choices=both, default=both, help="default: both")
    parser.add_argument(
        "--scenarios", nargs="+", choices=[one.name for one in SCENARIOS], help="default: all"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "fleet.json")
    options = parser.parse_args()
    if options.quick:
        options.torch = 0
    if not all(2 <= clients <= 20_000 for clients in options.clients):
        parser.error("--clients: 2 to 20000")
    return options


def _write(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def _show(column_name: str, row: dict[str, Any]) -> None:
    print(
        f"{column_name:10} {row['scenario']:22} {row['starts']:5} starts {row['compiles']:5} compiles "
        f"{row['errors']:5} errors  wait p50 {row['wait_p50_s']:6.2f} p99 {row['wait_p99_s']:6.2f} max "
        f"{row['wait_max_s']:6.2f} of {row['deadline_s']:.0f} s  {row['MiB']:7.1f} MiB  registry "
        f"{row['registry_cpu_s']:5.1f} s CPU {row['registry_peak_MiB']:5} MiB",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
