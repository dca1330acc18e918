"""Compute what a registry needs for a number of nodes, and what that costs a month: ``python -m
benchmarks.fleet.cost``.

Every price and every habit of the fleet is an input with a default that is an assumption; look your own up.
The CPU time of a start at the registry is measured (`benchmarks/results/fleet_simulation.json`). Prints the
tables of docs/scale.md; ``--price NAME=VALUE`` changes an input.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

from .simulation import RESULTS

NODES = (10, 1000, 100_000)
"""Sizes of the fleets in the tables."""
HOURS = 730
"""Hours of a month."""
DAYS = 30
"""Days of a month."""


@dataclass(frozen=True)
class Inputs:
    """Prices in US dollars and habits of a fleet. All defaults are assumptions.

    ``vcpu_hour``, ``memory_gib_hour``: of a machine on demand. ``postgresql_small`` and ``postgresql_large``:
    of a managed database with a standby, a month. ``redis``: of a managed cache, a month. ``stored_gib``: a
    GiB in a bucket, a month. ``get_1000``: a thousand downloads from the bucket. ``bucket_gib``: a GiB from
    the bucket to a node of its region. ``starts_day``: starts of processes on a node, a day.
    ``revisions_day``: revisions that a node has not had, a day; it downloads each once. ``pack_mib``: a pack.
    ``revisions``: how many are stored. ``surge``: the share of the nodes that starts at one moment.
    ``seconds``: in which the registry is to have answered them, with half of its cores.
    """

    vcpu_hour: float = 0.04
    memory_gib_hour: float = 0.005
    postgresql_small: float = 130.0
    postgresql_large: float = 1000.0
    redis: float = 50.0
    stored_gib: float = 0.023
    get_1000: float = 0.0004
    bucket_gib: float = 0.0
    starts_day: float = 20.0
    revisions_day: float = 2.0
    pack_mib: float = 10.0
    revisions: float = 2000.0
    surge: float = 0.1
    seconds: float = 10.0


@dataclass(frozen=True)
class Need:
    """What a fleet of ``nodes`` needs, and its cost a month. ``at_once``: processes that start at one moment.
    ``gib_month``: downloads."""

    nodes: int
    at_once: int
    replicas: int
    starts_second: float
    gib_month: float
    machines: float
    services: float
    bucket: float

    @property
    def total(self) -> float:
        """Return dollars a month."""
        return self.machines + self.services + self.bucket


def need(nodes: int, registry_seconds: float, inputs: Inputs) -> Need:
    """Return what ``nodes`` need. ``registry_seconds``: CPU of the registry for one start.

    Up to ``SMALL`` nodes it is one embedded registry; above, three replicas at least, with PostgreSQL, Redis
    and a bucket. A replica has a vCPU for its one busy thread and one for the rest.
    """
    embedded = nodes <= SMALL
    at_once = max(1, nodes if nodes <= SMALL_SURGE else math.ceil(nodes * inputs.surge))
    busy = math.ceil(at_once * registry_seconds / (inputs.seconds / 2))
    replicas = 1 if embedded else max(3, busy)
    gib = nodes * inputs.revisions_day * DAYS * inputs.pack_mib / 1024
    replica = HOURS * (2 * inputs.vcpu_hour + 4 * inputs.memory_gib_hour)
    stored = inputs.revisions * inputs.pack_mib / 1024 * inputs.stored_gib
    downloads = nodes * inputs.revisions_day * DAYS / 1000 * inputs.get_1000 + gib * inputs.bucket_gib
    database = inputs.postgresql_small if nodes < LARGE else inputs.postgresql_large
    return Need(
        nodes=nodes,
        at_once=at_once,
        replicas=replicas,
        starts_second=nodes * inputs.starts_day / 86_400,
        gib_month=gib,
        machines=replicas * replica,
        services=0.0 if embedded else database + inputs.redis,
        bucket=stored if embedded else stored + downloads,
    )


SMALL = 100
"""Nodes up to which one embedded registry is assumed."""
SMALL_SURGE = 1000
"""Nodes up to which all of them may start at one moment: as many were measured."""
LARGE = 10_000
"""Nodes from which the large database is assumed."""


def registry_seconds(results: Path = RESULTS) -> float:
    """Return the measured seconds of the registry's CPU for one start of a large cold fleet."""
    report = json.loads((results / "fleet_simulation.json").read_text())
    return float(report["scenarios"]["cold rollout"]["costs"]["registry"]) / 1000


def table(inputs: Inputs, seconds: float) -> list[str]:
    """Return the table of docs/scale.md, in Markdown."""
    lines = [
        "| nodes | start at once | replicas | starts a second, mean | downloads a month | machines "
        "| database, Redis | bucket | a month |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for nodes in NODES:
        one = need(nodes, seconds, inputs)
        lines.append(
            f"| {one.nodes:,} | {one.at_once:,} | {one.replicas} | {one.starts_second:.3g} "
            f"| {one.gib_month:,.0f} GiB | ${one.machines:,.0f} | ${one.services:,.0f} | ${one.bucket:,.2f} "
            f"| ${one.total:,.0f} |"
        )
    return lines


def main() -> int:
    options = _options()
    names = {field.name for field in fields(Inputs)}
    inputs = Inputs()
    for text in options.price:
        name, _, value = text.partition("=")
        if name not in names:
            print(f"error: --price {text}: inputs are {', '.join(sorted(names))}", file=sys.stderr)
            return 2
        try:
            inputs = replace(inputs, **{name: float(value)})
        except ValueError:
            print(f"error: --price {text}: {value!r} is no number", file=sys.stderr)
            return 2
    print("\n".join(table(inputs, registry_seconds())))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.cost", description="Compute what a registry costs a month."
    )
    parser.add_argument("--price", action="append", default=[], metavar="NAME=VALUE", help="changes an input")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
