"""Start real torch processes at once over a registry: one compiles, others wait or run eagerly.

Each process is a service on a host of its own, with the name of the fleet, under which nothing is published
unless the rollout is warm. A compile is a real one of Inductor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.hosts import Failed, Host, Registry, registry, running_process
from benchmarks.load.columns import PREFIX
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.names import Name

from .relay import Relay, fail
from .replicas import CLAIM_SECONDS

NAME = "team/torch"
"""The name of the services."""
PUBLISH_AFTER = 3.0
"""Seconds without a compile after which the holder publishes."""


@dataclass(frozen=True)
class Rollout:
    """Describes one rollout. ``policy``: of CACHESVC_WAIT. ``kill_holder``: the service that has the claim is
    killed in the middle of its compile. ``warm``: the revision is there before. ``fault``: one of
    `relay.FAULTS`, in the middle of the compile, or after the first answer to the warm services.
    ``deadline``: seconds that a compile may wait; many processes import torch at once on few cores."""

    policy: str
    kill_holder: bool = False
    warm: bool = False
    fault: str = ""
    deadline: float = 240.0


NONE: Mapping[str, str] = MappingProxyType({})
"""No variables."""


class Service:
    """One process, and what it said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.compiles = False
        """Whether Inductor has generated code."""
        self.calls: dict[str, Any] | None = None
        """How its calls went; ``None`` until they are over."""
        self._reader = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        """Wait until the process is ready."""
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            raise Failed("a process with torch did not start, see above")

    def go(self) -> None:
        """Let the process call its model."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "compiling":
                self.compiles = True
            elif line.strip():
                self.calls = json.loads(line)


def run_services(
    number: int,
    rollout: Rollout,
    folder: Path,
    *,
    replicas: Sequence[Registry] = (),
    timeout: float = 600.0,
    variables: Mapping[str, str] = NONE,
    python: Sequence[str] = (sys.executable,),
) -> dict[str, Any]:
    """Start ``number`` services at once in a rollout; return the row of the table.

    ``replicas``: of the registry, which the services take in turn; without any, one embedded registry is
    started. ``variables``: more variables of each service. ``python``: what starts a service. Raises
    ``Failed`` if a service is not done within ``timeout`` seconds.
    """
    claims = {f"{PREFIX}CLAIM_SECONDS": str(CLAIM_SECONDS)}
    with ExitStack() as stack:
        served = replicas or [stack.enter_context(registry(folder / "registry", **claims))]
        start = _Starter(rollout, {**variables}, tuple(python))
        if rollout.warm:
            _publish_first(start, served[0], folder / "first", timeout)
        network = _Network(rollout, served, stack)
        services = [
            stack.enter_context(start.service(network.reached(n), folder / str(n))) for n in range(number)
        ]
        if rollout.warm:
            network.fail_after_an_answer(timeout)
        for one in services:
            one.begin()
        load, began = os.getloadavg()[0], time.monotonic()
        for one in services:
            one.go()
        if rollout.kill_holder or (rollout.fault and not rollout.warm):
            holder = _first_that_compiles(services, began + timeout)
            if rollout.kill_holder:
                holder.process.kill()
                holder.process.wait()
            network.fail()
        calls = _calls_of_those_alive(services, began + timeout)
        seconds = time.monotonic() - began
    return {
        "policy": rollout.policy,
        "holder_killed": rollout.kill_holder,
        "warm": rollout.warm,
        "fault": rollout.fault,
        "deadline_s": rollout.deadline,
        "load": round(load, 1),
        "seconds": round(seconds, 1),
        "began_to_compile": sum(one.compiles for one in services),
        "late": sum(one["waited"] > rollout.deadline + 1 for one in calls),
        **summary(calls, number - len(calls)),
    }


def summary(calls: list[dict[str, Any]], killed: int) -> dict[str, Any]:
    """Return what the services have in common. ``killed``: holders that were killed, which compiled too.

    ``wait_max_s``: the longest wait of a compile. ``compiled_call_s``: the call that compiled, with its wait;
    ``switch_*``: the calls that used what another process compiled, with their waits.
    """
    compiled = [one for one in calls if one["compilations"]]
    others = [one for one in calls if not one["compilations"]]
    return {
        "services": len(calls) + killed,
        "compiled": len(compiled) + killed,
        "hits": sum(one["state"] == "hit" for one in others),
        "wrong": sum(one["wrong"] for one in calls),
        "wait_max_s": round(max(one["waited"] for one in calls), 2),
        "compiled_call_s": round(max((one["switch"] for one in compiled), default=0.0), 2),
        "first_call_max_s": round(max((one["first_call"] for one in others), default=0.0), 2),
        "eager_calls": sum(one["served_eagerly"] for one in others),
        "eager_s": round(max((one["eager_seconds"] for one in others), default=0.0), 2),
        "switch_p50_s": round(sorted(one["switch"] for one in others)[len(others) // 2], 2)
        if others
        else None,
        "switch_max_s": round(max((one["switch"] for one in others), default=0.0), 2),
        "longest_other_call_s": round(max((one["longest"] for one in others), default=0.0), 3),
        "eager_p50_ms": round(max((one["eager_p50_ms"] for one in others), default=0.0), 2),
        "compiled_p50_ms": round(max(one["compiled_p50_ms"] for one in calls), 2),
        "bytes": sum(one["bytes"] for one in others),
    }


def _first_that_compiles(services: list[Service], until: float) -> Service:
    """Wait until a service is in the middle of its compile, and return it: it holds the claim."""
    while time.monotonic() < until:
        for one in services:
            if one.compiles:
                return one
        time.sleep(0.002)
    raise Failed("no service compiled")


def _calls_of_those_alive(services: list[Service], until: float) -> list[dict[str, Any]]:
    """Wait until the calls of all services are over that were not killed; return how they went."""
    left = [one for one in services if one.process.poll() is None]
    while any(one.calls is None for one in left):
        if time.monotonic() > until:
            raise Failed("services were not done in time")
        time.sleep(0.1)
    return [one.calls for one in left if one.calls is not None]


def _publish_first(start: _Starter, served: Registry, place: Path, timeout: float) -> None:
    """Let one service compile and publish, and end."""
    until = time.monotonic() + timeout
    with start.service(served, place) as first, Remote(served.url, served.token) as remote:
        first.begin()
        first.go()
        while not remote.entries(Name.parse(NAME)):
            if time.monotonic() > until:
                raise Failed("the first revision was not published")
            time.sleep(0.5)


class _Network:
    """Is what lies between the services and the replicas: a relay, if it is to fail, otherwise nothing."""

    def __init__(self, rollout: Rollout, replicas: Sequence[Registry], stack: ExitStack) -> None:
        self._fault, self._replicas = rollout.fault, replicas
        self._relay: Relay | None = None
        if rollout.fault:
            self._relay = stack.enter_context(Relay(*(one.address for one in replicas)).running())

    def reached(self, number: int) -> Registry:
        """Return the registry as a service reaches it."""
        if self._relay is not None:
            return replace(self._replicas[0], url=self._relay.url)
        return self._replicas[number % len(self._replicas)]

    def fail(self) -> None:
        """Let the fault happen."""
        if self._relay is not None:
            fail(self._fault, self._replicas[0], self._relay)

    def fail_after_an_answer(self, timeout: float) -> None:
        """Let the fault happen once a replica has answered a service."""
        if self._relay is not None and not self._relay.answered.wait(timeout):
            raise Failed("no service asked the registry")
        self.fail()


@dataclass(frozen=True)
class _Starter:
    """Starts the services of a rollout."""

    rollout: Rollout
    more: Mapping[str, str]
    python: tuple[str, ...]

    @contextmanager
    def service(self, served: Registry, place: Path) -> Iterator[Service]:
        """Run a service on a host of its own for the length of the block."""
        variables = served.builder | {
            "CACHESVC_MODE": "readwrite",
            "CACHESVC_WAIT": self.rollout.policy,
            "CACHESVC_DEADLINE": str(self.rollout.deadline),
            "CACHESVC_PUBLISH_AFTER": str(PUBLISH_AFTER),
        }
        env = Host(place).environment() | variables | dict(self.more)
        command = [*self.python, "-m", "benchmarks.fleet.torch_service", NAME]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with (
            open(place / "err", "wb") as errors,
            running_process(command, env=env, stderr=errors, **pipes) as process,
        ):
            yield Service(process)
