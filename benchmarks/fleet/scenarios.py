"""Start a fleet in one scenario, and say how the starts went."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.hosts import ROOT, Failed, clean_environment, running_process
from benchmarks.load.filling import FINGERPRINT
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.as_you_go import UNPROVEN_LANE
from cachesvc_client.wire.names import Lane, Name
from cachesvc_client.wire.requests.protocol import ResolvedRevision, ResolveRequest

from .relay import FAULTS, Relay, fail
from .replicas import Replicas, cpu_seconds
from .starter import Plan

BOUND = 1.5
"""How many times the compile and the bytes at the measured bandwidth a start may take."""


@dataclass(frozen=True)
class Scenario:
    """Describes one scenario. ``warm``: the revision is there before. ``kill_holder``: the process that
    compiles is killed. ``fault``: one of `FAULTS`, in the middle of a compile, or of the warm starts."""

    name: str
    warm: bool = False
    kill_holder: bool = False
    fault: str = ""


SCENARIOS = (
    Scenario("cold rollout"),
    Scenario("holder killed", kill_holder=True),
    Scenario("warm rollout", warm=True),
    *(Scenario(f"cold, {fault}", fault=fault) for fault in FAULTS[1:]),
    *(Scenario(f"warm, {fault}", warm=True, fault=fault) for fault in FAULTS[1:]),
)


@dataclass(frozen=True)
class Size:
    """Says how large a fleet is. ``compile_seconds`` and ``deadline``: seconds. The model of the processes
    with torch takes about as long to compile on two cores (`torch_services`)."""

    clients: int = 1000
    processes: int = 4
    compile_seconds: float = 16.0
    deadline: float = 60.0
    pack_bytes: int = 1 << 20


class Fleet:
    """Processes of starters, which start at one word."""

    def __init__(self, plan: Plan, processes: int, stack: ExitStack) -> None:
        self.compiles = 0
        self.compiling = threading.Event()
        self._starts: list[dict[str, Any]] = []
        self.processes: list[subprocess.Popen[str]] = []
        for number in range(processes):
            share = plan.clients // processes + (number < plan.clients % processes)
            own = replace(plan, clients=share, folder=f"{plan.folder}/{number}")
            command = [sys.executable, "-m", "benchmarks.fleet.process"]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = running_process(command, cwd=ROOT, env=clean_environment(), **pipes)
            self.processes.append(stack.enter_context(process))
            self._say(self.processes[-1], json.dumps(asdict(own)))
        for one in self.processes:
            if _line(one) != "ready":
                raise Failed("a process of starters did not start, see above")
        self._readers = [threading.Thread(target=self._read, args=(one,)) for one in self.processes]

    def go(self) -> None:
        """Start all at once."""
        for process in self.processes:
            self._say(process, "go")
        for reader in self._readers:
            reader.start()

    def starts(self) -> list[dict[str, Any]]:
        """Wait for the ends of all starts, and return them; those of a killed process are not among them."""
        for reader in self._readers:
            reader.join()
        return self._starts

    def _read(self, process: subprocess.Popen[str]) -> None:
        while line := _line(process):
            if line == "compile":
                self.compiles += 1
                self.compiling.set()
            else:
                self._starts += json.loads(line)

    @staticmethod
    def _say(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()


class Work:
    """The CPU time of a fleet and of its registry while it starts, sampled in this process."""

    def __init__(self, served: Replicas, fleet: Fleet) -> None:
        self._served, self._fleet = served, fleet
        self._samples: list[tuple[float, float, float]] = []
        self._over = threading.Event()

    @contextmanager
    def sampling(self) -> Iterator[Work]:
        """Sample for the length of the block."""
        self._began = time.monotonic()
        self._sample()
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def until(self, starts: Sequence[dict[str, Any]], since: float) -> dict[str, float]:
        """Return what the starts cost from ``since`` seconds until the last of them had waited:
        milliseconds of CPU for each start, of registry and starter, and the cores that both had."""
        end = max(start["waited"] for start in starts)
        (_, registry_0, fleet_0), (_, registry_1, fleet_1) = self._at(since), self._at(end)
        registry, fleet = registry_1 - registry_0, fleet_1 - fleet_0
        return {
            "registry_ms": round(1000 * registry / len(starts), 2),
            "starter_ms": round(1000 * fleet / len(starts), 2),
            "cores": round((registry + fleet) / max(0.01, end - since), 2),
        }

    def _at(self, moment: float) -> tuple[float, float, float]:
        return next((one for one in self._samples if one[0] >= moment), self._samples[-1])

    def _run(self) -> None:
        while not self._over.wait(0.05):
            self._sample()

    def _sample(self) -> None:
        pids = [process.pid for process in self._fleet.processes]
        with suppress(OSError):  # a process has ended meanwhile
            fleet = sum(map(cpu_seconds, pids))
            self._samples.append((time.monotonic() - self._began, self._served.cpu_seconds(), fleet))


def run(scenario: Scenario, size: Size, served: Replicas, folder: Path) -> dict[str, Any]:
    """Run a scenario over replicas of its own, and return its row of the table."""
    registry = served.first
    with ExitStack() as stack:
        relay = stack.enter_context(Relay(*served.addresses).running()) if scenario.fault else None
        plan = Plan(
            urls=(relay.url,) if relay else tuple(one.url for one in served.replicas),
            token=registry.token,
            trust=registry.trust,
            signing_key=registry.signing_key,
            name="team/fleet",
            clients=size.clients,
            deadline=size.deadline,
            compile_seconds=size.compile_seconds,
            pack_bytes=size.pack_bytes,
            fingerprint=FINGERPRINT,
            folder=str(folder / "starters"),
        )
        if scenario.warm:
            _publish_first(replace(plan, urls=(registry.url,), clients=1, folder=str(folder / "first")))
        fleets = [Fleet(plan, size.processes, stack)]
        if scenario.kill_holder:
            holder = Fleet(replace(plan, clients=1, folder=str(folder / "holder")), 1, stack)
            fleets.append(holder)
            holder.go()
            holder.compiling.wait(size.deadline)
        before, began = served.cpu_seconds(), time.monotonic()
        work = stack.enter_context(Work(served, fleets[0]).sampling())
        fleets[0].go()
        middle = 1.0 if scenario.warm else size.compile_seconds / 2
        with _meanwhile(middle, lambda: _fail(scenario, served, relay, fleets)):
            starts = fleets[0].starts()
        seconds, cpu = time.monotonic() - began, served.cpu_seconds() - before
        compiles = sum(fleet.compiles for fleet in fleets)
        return {
            "scenario": scenario.name,
            "load": round(os.getloadavg()[0], 1),
            "seconds": round(seconds, 1),
            **summary(starts, compiles, size),
            "registry_cpu_s": round(cpu, 1),
            **({} if scenario.fault else work.until(starts, 0.0 if scenario.warm else size.compile_seconds)),
            "registry_peak_MiB": served.peak_mib(),
            **(
                {}
                if scenario.fault or scenario.kill_holder
                else _bound(scenario.warm, plan, size, starts, stack)
            ),
        }


def _bound(
    warm: bool, plan: Plan, size: Size, starts: Sequence[dict[str, Any]], stack: ExitStack
) -> dict[str, Any]:
    """Return what a start may take, by what its compile and its bytes take: ``bound_s``, and how many starts
    took longer.

    The bandwidth is measured by as many clients that only download, in as many processes, at once.
    """
    [start] = _published(plan)
    link = replace(plan, link=start.pack_url, folder=f"{plan.folder}-bare")
    bare = Fleet(link, size.processes, stack)
    began = time.monotonic()
    bare.go()
    downloads = bare.starts()
    rate = sum(one["bytes"] for one in downloads) / (time.monotonic() - began)
    compiled = 0.0 if warm else size.compile_seconds
    return {"MiB_per_s": round(rate / (1 << 20), 1), **within_bound(starts, compiled, rate)}


def within_bound(
    starts: Sequence[dict[str, Any]], compile_seconds: float, bytes_per_second: float
) -> dict[str, Any]:
    """Return ``BOUND`` times the seconds of one compile and of all bytes at the measured bandwidth, which the
    starts share, and how many starts waited longer."""
    total = sum(one["bytes"] for one in starts)
    bound = BOUND * (compile_seconds + total / bytes_per_second)
    return {"bound_s": round(bound, 1), "beyond_bound": sum(one["waited"] > bound for one in starts)}


def _published(plan: Plan) -> Sequence[ResolvedRevision]:
    name = Name.parse(plan.name)
    with Remote(plan.urls[0], plan.token) as remote:
        request = ResolveRequest(name.namespace, name.name, plan.fingerprint, lane=Lane(UNPROVEN_LANE))
        return remote.resolve(request).revisions


def summary(starts: Sequence[dict[str, Any]], compiles: int, size: Size) -> dict[str, Any]:
    """Return what the starts of a scenario have in common.

    ``wait_*``: seconds until a start had its artifacts or began to compile. ``late``: starts whose wait was
    longer than the deadline, by more than a second.
    """
    waits = sorted(start["waited"] for start in starts)
    texts = Counter(_without_address(text) for start in starts for text in start["errors"])
    return {
        "starts": len(starts),
        "compiles": compiles,
        "restored": sum(start["restored"] and not start["compiled"] for start in starts),
        "errors": sum(bool(start["errors"]) for start in starts),
        "wait_p50_s": round(waits[len(waits) // 2], 2),
        "wait_p99_s": round(waits[int(len(waits) * 0.99)], 2),
        "wait_max_s": round(waits[-1], 2),
        "deadline_s": size.deadline,
        "late": sum(wait > size.deadline + 1 for wait in waits),
        "MiB": round(sum(start["bytes"] for start in starts) / (1 << 20), 1),
        "reports": dict(Counter(start["report"] for start in starts if start["report"])),
        "why": dict(
            Counter(_without_address(start["why"]) for start in starts if start["why"]).most_common(3)
        ),
        "said": dict(texts.most_common(3)),
    }


def _without_address(text: str) -> str:
    return " ".join(word for word in text.split() if "://" not in word and not word.isdigit())[:80]


def _publish_first(plan: Plan) -> None:
    with ExitStack() as stack:
        fleet = Fleet(replace(plan, compile_seconds=0.0), 1, stack)
        fleet.go()
        [start] = fleet.starts()
    if not start["published"]:
        raise Failed(f"the first revision was not published: {start}")


def _fail(scenario: Scenario, served: Replicas, relay: Relay | None, fleets: list[Fleet]) -> None:
    """Do what the scenario says to the registry or to the holder."""
    if scenario.kill_holder:
        fleets[-1].processes[0].kill()
    elif relay is not None:
        fail(scenario.fault, served.first, relay)


@contextmanager
def _meanwhile(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
