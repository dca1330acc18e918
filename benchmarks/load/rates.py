"""Requests a second, asked for by wrk: a process of its own, in C, which takes little of the machine."""

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
    """Something to ask ``clients`` times at once. ``kind``: as ``requests.lua`` has it."""

    name: str
    kind: str
    url: str
    pid: int
    token: str = ""
    entries: int = 0


@dataclass(frozen=True)
class Rate:
    """What came of it in some seconds. ``cpu_us``: of the server's process, for one request."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def bare_load(bare: Bare) -> Load:
    """The yardstick."""
    return Load("bare", "bare", f"{bare.url}/", bare.pid)


def resolve_load(name: str, kind: str, registry: Registry, entries: int) -> Load:
    """Resolves of what ``filling`` made."""
    return Load(name, kind, f"{registry.url}/v1/resolve", registry.pid, registry.token, entries)


def measured(loads: list[Load], rounds: int, seconds: float) -> dict[str, list[Rate]]:
    """Round after round, each load in each, so that what else the machine does falls on all."""
    found: dict[str, list[Rate]] = {load.name: [] for load in loads}
    for load in loads:
        _wrk(load, 1.0)  # what is loaded at the first use is no part of it
    for _ in range(rounds):
        for load in loads:
            found[load.name].append(asked(load, seconds))
    return found


def asked(load: Load, seconds: float) -> Rate:
    """One run of wrk. Raises ``Failed`` if it is missing, or if any request did not succeed."""
    before = _cpu_seconds(load.pid)
    said = _wrk(load, seconds)
    spent = _cpu_seconds(load.pid) - before
    if said["errors"] or not said["requests"]:
        raise Failed(f"{load.name}: {said['errors']} of {said['requests']} requests failed")
    rate, cpu = said["requests"] / said["seconds"], spent / said["requests"] * 1e6
    return Rate(round(rate, 1), said["p50_ms"], said["p99_ms"], round(cpu, 1))


def _wrk(load: Load, seconds: float) -> dict[str, Any]:
    program = shutil.which("wrk")
    if program is None:
        raise Failed("wrk is not installed (apt-get install wrk)")
    command = [program, "-t1", f"-c{CLIENTS}", f"-d{seconds:.0f}s", "--timeout", "30s"]
    arguments = [load.kind, load.token, str(load.entries // PER_NAME), str(NAMES), json.dumps(FINGERPRINT)]
    done = subprocess.run(
        [*command, "-s", str(_SCRIPT), load.url, "--", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"wrk: {done.stderr or done.stdout}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def summary(found: dict[str, list[Rate]]) -> dict[str, dict[str, Any]]:
    """Medians, each with its ratio to ``bare`` of the same round; and all rounds."""
    return {name: dict(_row(name, rates, found["bare"])) for name, rates in found.items()}


def _row(name: str, rates: list[Rate], bare: list[Rate]) -> Iterator[tuple[str, Any]]:
    for what in ("rate", "p50_ms", "p99_ms", "cpu_us"):
        yield what, round(statistics.median(getattr(rate, what) for rate in rates), 3)
    if name != "bare":
        pairs = list(zip(rates, bare, strict=True))
        yield "of_bare", round(statistics.median(rate.rate / other.rate for rate, other in pairs), 3)
        yield "cpu_of_bare", round(statistics.median(rate.cpu_us / other.cpu_us for rate, other in pairs), 2)
    yield "rounds", [asdict(rate) for rate in rates]


def _cpu_seconds(pid: int) -> float:
    """proc(5): user and system time, of all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
