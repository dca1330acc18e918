"""Measure what a registry carries: requests, transfers, sizes of the index, publishers beside readers,
memory.

Two columns: *embedded* (SQLite and a folder), *production* (PostgreSQL, Redis and Ceph's S3, all started here
on loopback). Everything is measured beside its yardstick, round after round: requests beside a bare FastAPI
endpoint on the same server program, transfers beside boto3 on the same S3 (embedded: FastAPI alone with
files). Exit status 1 if anything was lost. Usage: ``python -m benchmarks.registry`` (``--quick``: a look).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.conditions import hardware, keep, now
from benchmarks.hosts import ROOT, Failed, clean_environment
from benchmarks.load import rates, storm, transfers
from benchmarks.load.columns import Embedded, Production, bare, column, serving
from cachesvc.cli.signals import interruptible

PARTS = ("rates", "transfers", "storm", "memory")
_MEMORY = ROOT / "tests" / "registry" / "test_api_publish.py"


@dataclass(frozen=True)
class Extent:
    """Says how much of everything is measured.

    ``sizes``: entries of the indexes; the headline is that of the middle one. ``packs``: (MiB, how many),
    which the S3 in memory has to hold some ten times. ``storm``: publishers, readers."""

    sizes: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    rounds: int = 5
    seconds: float = 3
    packs: tuple[tuple[float, int], ...] = ((0.25, 64), (1, 32), (16, 6), (64, 2))
    storm: tuple[int, int] = (16, 64)
    storm_seconds: float = 30
    frames: int = 512


QUICK = Extent((1_000, 4_000), 1, 1, ((1, 8),), (4, 8), 3, 40)


def main() -> int:
    options = _options()
    extent = QUICK if options.quick else Extent()
    try:
        with interruptible():
            report = _report(options, extent)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    keep(report, options.json)
    return int(any(_damage(column) for column in report["columns"].values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", nargs="+", choices=("embedded", "production"), help="default: both")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--quick", action="store_true", help="little of everything, and no judgement")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "registry.json")
    return parser.parse_args()


def _report(options: argparse.Namespace, extent: Extent) -> dict[str, Any]:
    report: dict[str, Any] = {
        "date": now(),
        "hardware": hardware(),
        "load_before": os.getloadavg()[0],
        "versions": dict(_versions()),
        "extent": asdict(extent),
        "columns": {},
    }
    for name in options.columns or ("embedded", "production"):
        print(f"\n{name}")
        with column(name) as where:
            results = report["columns"][name] = _measured(where, options.parts, extent)
        if not options.quick:
            results["targets"] = targets(results)
            for row in results["targets"]:
                verdict = "reached" if row["reached"] else "MISSED"
                print(f"  {verdict:8} {row['what']}: {row['value']} ({row['bound']})")
    return report


def _measured(where: Embedded | Production, parts: list[str], extent: Extent) -> dict[str, Any]:
    results: dict[str, Any] = {"column": where.name}
    with (
        tempfile.TemporaryDirectory(prefix="cachesvc-registry-") as folder,
        bare(Path(folder, "bare")) as plain,
    ):
        place = Path(folder)
        if "rates" in parts:
            results |= _rates(where, place, plain, extent)
        if "transfers" in parts:
            with serving(where, place / "transfers") as (server, _):
                results["transfers"] = [
                    transfers.measure(where, server, plain, size, count, min(extent.rounds, 3))
                    for size, count in extent.packs
                ]
            _show_transfers(results["transfers"])
        if "storm" in parts:
            results["storm"] = _storm(where, place, extent)
    if "memory" in parts:
        results["memory"] = _memory(where.name, extent.frames)
    return results


def _rates(where: Embedded | Production, place: Path, plain: Any, extent: Extent) -> dict[str, Any]:
    middle = extent.sizes[len(extent.sizes) // 2]
    loads, fills = [rates.bare_load(plain)], []
    with ExitStack() as stack:
        for size in extent.sizes:
            server, fill = stack.enter_context(serving(where, place / f"index-{size}", size))
            fills.append(asdict(fill))
            print(f"  filled: {fill.entries} entries in {fill.seconds} s, {fill.bytes / 1e6:.0f} MB")
            if size == middle:
                loads.append(rates.resolve_load("cached", "cached", server, size))
            loads.append(rates.resolve_load(f"uncached, {size} entries", "uncached", server, size))
        summary = rates.summary(rates.measure(loads, extent.rounds, extent.seconds))
    _show_rates(summary)
    return {"fills": fills, "requests": summary, "headline_entries": middle}


def _storm(where: Embedded | Production, place: Path, extent: Extent) -> dict[str, Any]:
    settings, seconds = dict(storm.SETTINGS), extent.storm_seconds
    if isinstance(where, Production):
        # Links last a minute at least, and their objects outlive them: collection must reach that time.
        settings |= {"link_seconds": 60, "grace_seconds": 61}
        seconds = max(seconds, 90.0)
    else:
        settings |= {"grace_seconds": 3}
    with serving(where, place / "storm", 0, **settings) as (server, _):
        counts = storm.measure(server, *extent.storm, seconds)
    print("  " + ", ".join(f"{name} {value}" for name, value in counts.items()))
    return counts


def _memory(name: str, frames: int) -> dict[str, int]:
    """Run the test that measures the peak of the server's memory, before and after one large pack."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-k",
        f"memory_does_not_grow and {name}",
        str(_MEMORY),
    ]
    env = clean_environment() | {"CACHESVC_TEST_FRAMES": str(frames)}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    line = re.search(r"(\d+) MiB: the peak rose from (\d+) to (\d+) MiB", result.stdout)
    if result.returncode or line is None:
        raise Failed(f"the test of memory failed:\n{result.stdout[-3000:]}")
    pack, before, after = map(int, line.groups())
    print(f"  {line[0]}")
    return {"pack_MiB": pack, "before_MiB": before, "after_MiB": after}


def targets(column: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the targets of issue 5, with the measured values."""
    return [
        {"what": what, "value": value, "bound": bound, "reached": reached}
        for what, value, bound, reached in _targets(column)
    ]


def _targets(column: dict[str, Any]) -> Iterator[tuple[str, Any, str, bool]]:
    if "requests" in column:
        requests = column["requests"]
        uncached = {name: row for name, row in requests.items() if name.startswith("uncached")}
        ratio = requests["cached"]["of_bare"]
        yield "cached resolves / bare endpoint", ratio, "at least 0.4", ratio >= 0.4
        ratio = uncached[f"uncached, {column['headline_entries']} entries"]["of_bare"]
        yield "uncached resolves / bare endpoint", ratio, "at least 0.1", ratio >= 0.1
        ratios = [row["of_bare"] for row in uncached.values()]
        spread = round(max(ratios) / min(ratios), 2)
        yield "fastest / slowest size of the index", spread, "at most 1.5", spread <= 1.5
    for row in column.get("transfers", ()):
        for way, least in (("download", 0.8), ("publish", 0.4)) if column["column"] == "production" else ():
            ratio = row[f"{way}_ratio"]
            yield f"{way} of {row['MiB']} MiB / plain", ratio, f"at least {least}", ratio >= least
    if "storm" in column:
        damage = _damage(column)
        yield "lost, dangling or wrong", len(damage), "none", not damage
    if "memory" in column:
        after = column["memory"]["after_MiB"]
        yield (
            f"MiB of memory for a pack of {column['memory']['pack_MiB']} MiB",
            after,
            "under 200",
            after < 200,
        )


def _damage(column: dict[str, Any]) -> list[str]:
    storm = column.get("storm", {"lost": [], "dangling": [], "read": {}})
    wrong = storm["read"].get("wrong packs", 0)
    return [*storm["lost"], *storm["dangling"], *([f"{wrong} packs had other bytes"] if wrong else [])]


def _show_rates(results: dict[str, dict[str, Any]]) -> None:
    heads = ("/s", "of bare", "p50 ms", "p99 ms", "CPU us")
    print(f"  {f'requests, {rates.CLIENTS} clients':32}" + "".join(f"{head:>9}" for head in heads))
    for name, row in results.items():
        numbers = [f"{row[what]:9.1f}" for what in ("p50_ms", "p99_ms", "cpu_us")]
        print(f"  {name:32}{row['rate']:9.0f}{row.get('of_bare', ''):>9}" + "".join(numbers))


def _show_transfers(rows: list[dict[str, Any]]) -> None:
    print(
        f"  {'MiB/s':12} {'download':>9} {'plain':>8} {'ratio':>6} {'publish':>9} {'plain':>8} {'ratio':>6}"
    )
    for row in rows:
        numbers = [
            f"{row[way]:9.0f} {row[f'plain {way}']:8.0f} {row[f'{way}_ratio']:6}"
            for way in ("download", "publish")
        ]
        print(f"  {str(row['MiB']) + ' MiB':12} {' '.join(numbers)}")


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for name in ("fastapi", "starlette", "uvicorn", "sqlalchemy", "psycopg", "redis", "boto3"):
        yield name, importlib.metadata.version(name)


if __name__ == "__main__":
    sys.exit(main())
