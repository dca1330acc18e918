"""Measure requests a second with wrk, a process of its own in C, which takes little of the machine."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.hosts import Failed, Registry

from .columns import Bare
from .filling import FINGERPRINT, NAMES, PER_NAME

CLIENTS = 64
_SCRIPT = Path(__file__).with_name("requests.lua")


@dataclass(frozen=True)
class Load:
    """Describes a request that ``clients`` clients send at once. ``kind``: as ``requests.lua`` has it."""

    name: str
    kind: str
    url: str
    pid: int
    token: str = ""
    entries: int = 0


@dataclass(frozen=True)
class Rate:
    """Holds the outcome of some seconds. ``cpu_us``: CPU time of the server's process for one request, in
    microseconds."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def bare_load(bare: Bare) -> Load:
    """Return the yardstick."""
    return Load("bare", "bare", f"{bare.url}/", bare.pid)


def resolve_load(name: str, kind: str, registry: Registry, entries: int) -> Load:
    """Return resolves of the entries that ``filling`` made."""
    return Load(name, kind, f"{registry.url}/v1/resolve", registry.pid, registry.token, entries)


def measure(loads: list[Load], rounds: int, seconds: float) -> dict[str, list[Rate]]:
    """Measure each load in each round, so that other work of the machine falls on all loads."""
    results: dict[str, list[Rate]] = {load.name: [] for load in loads}
    for load in loads:
        _wrk(load, 1.0)  # The first use loads modules, and its time does not count.
    for _ in range(rounds):
        for load in loads:
            results[load.name].append(ask_for(load, seconds))
    return results


def ask_for(load: Load, seconds: float) -> Rate:
    """Run wrk once. Raise ``Failed`` if it is missing, or if any request did not succeed."""
    before = _cpu_seconds(load.pid)
    output = _wrk(load, seconds)
    spent = _cpu_seconds(load.pid) - before
    if output["errors"] or not output["requests"]:
        raise Failed(f"{load.name}: {output['errors']} of {output['requests']} requests failed")
    rate, cpu = output["requests"] / output["seconds"], spent / output["requests"] * 1e6
    return Rate(round(rate, 1), output["p50_ms"], output["p99_ms"], round(cpu, 1))


def _wrk(load: Load, seconds: float) -> dict[str, Any]:
    program = shutil.which("wrk")
    if program is None:
        raise Failed("wrk is not installed (apt-get install wrk)")
    command = [program, "-t1", f"-c{CLIENTS}", f"-d{seconds:.0f}s", "--timeout", "30s"]
    arguments = [load.kind, load.token, str(load.entries // PER_NAME), str(NAMES), json.dumps(FINGERPRINT)]
    result = subprocess.run(
        [*command, "-s", str(_SCRIPT), load.url, "--", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise Failed(f"wrk: {result.stderr or result.stdout}")
    output: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return output


def summary(results: dict[str, list[Rate]]) -> dict[str, dict[str, Any]]:
    """Return medians, each with its ratio to ``bare`` of the same round, and all rounds."""
    return {name: dict(_row(name, rates, results["bare"])) for name, rates in results.items()}


def _row(name: str, rates: list[Rate], bare: list[Rate]) -> Iterator[tuple[str, Any]]:
    for what in ("rate", "p50_ms", "p99_ms", "cpu_us"):
        yield what, round(statistics.median(getattr(rate, what) for rate in rates), 3)
    if name != "bare":
        pairs = list(zip(rates, bare, strict=True))
        yield "of_bare", round(statistics.median(rate.rate / other.rate for rate, other in pairs), 3)
        yield "cpu_of_bare", round(statistics.median(rate.cpu_us / other.cpu_us for rate, other in pairs), 2)
    yield "rounds", [asdict(rate) for rate in rates]


def _cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads, by proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
