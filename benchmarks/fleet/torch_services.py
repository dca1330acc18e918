"""Start real torch processes at once over a registry: one compiles, others wait or run eagerly.

Each process is a service on a host of its own, with the name of the fleet and nothing published under it. A
compile is a real one of Inductor.
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
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.hosts import Failed, Host, Registry, registry, running_process
from benchmarks.load.columns import PREFIX

from .replicas import CLAIM_SECONDS

DEADLINE = 240.0
"""Seconds that a compile may wait: many processes import torch at once on few cores."""
PUBLISH_AFTER = 3.0
"""Seconds without a compile after which the holder publishes."""


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
    policy: str,
    folder: Path,
    *,
    kill_holder: bool = False,
    replicas: Sequence[Registry] = (),
    timeout: float = 600.0,
    variables: Mapping[str, str] = NONE,
    python: Sequence[str] = (sys.executable,),
) -> dict[str, Any]:
    """Start ``number`` services at once under a policy of CACHESVC_WAIT; return the row of the table.

    ``kill_holder``: the service that has the claim is killed in the middle of its compile. ``replicas``: of
    the registry, which the services take in turn; without any, one embedded registry is started.
    ``variables``: more variables of each service. ``python``: what starts a service. Raises ``Failed`` if a
    service is not done within ``timeout`` seconds.
    """
    claims = {f"{PREFIX}CLAIM_SECONDS": str(CLAIM_SECONDS)}
    with ExitStack() as stack:
        served = replicas or [stack.enter_context(registry(folder / "registry", **claims))]
        services = [
            stack.enter_context(_service(served[n % len(served)], policy, folder / str(n), variables, python))
            for n in range(number)
        ]
        for one in services:
            one.begin()
        load, began = os.getloadavg()[0], time.monotonic()
        for one in services:
            one.go()
        killed = _kill_holder(services, began + timeout) if kill_holder else 0
        left = [one for one in services if one.process.poll() is None]
        while any(one.calls is None for one in left):
            if time.monotonic() > began + timeout:
                raise Failed(f"services were not done in {timeout:.0f} s")
            time.sleep(0.1)
        seconds = time.monotonic() - began
    return {
        "policy": policy,
        "holder_killed": kill_holder,
        "load": round(load, 1),
        "seconds": round(seconds, 1),
        "began_to_compile": sum(one.compiles for one in services),
        **summary([one.calls for one in left if one.calls is not None], killed),
    }


def summary(calls: list[dict[str, Any]], killed: int) -> dict[str, Any]:
    """Return what the services have in common. ``killed``: holders that were killed, which compiled too.

    ``compiled_call_s``: the call that compiled, with its wait; ``switch_*``: the calls that used what another
    process compiled, with their waits.
    """
    compiled = [one for one in calls if one["compilations"]]
    others = [one for one in calls if not one["compilations"]]
    return {
        "services": len(calls) + killed,
        "compiled": len(compiled) + killed,
        "hits": sum(one["state"] == "hit" for one in others),
        "wrong": sum(one["wrong"] for one in calls),
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


def _kill_holder(services: list[Service], until: float) -> int:
    """Kill the service that compiles first, in the middle of that: it holds the claim."""
    while time.monotonic() < until:
        for one in services:
            if one.compiles:
                one.process.kill()
                one.process.wait()
                return 1
        time.sleep(0.002)
    raise Failed("no service compiled")


@contextmanager
def _service(
    served: Registry, policy: str, place: Path, more: Mapping[str, str], python: Sequence[str]
) -> Iterator[Service]:
    variables = served.builder | {
        "CACHESVC_MODE": "readwrite",
        "CACHESVC_WAIT": policy,
        "CACHESVC_DEADLINE": str(DEADLINE),
        "CACHESVC_PUBLISH_AFTER": str(PUBLISH_AFTER),
    }
    env = Host(place).environment() | variables | dict(more)
    command = [*python, "-m", "benchmarks.fleet.torch_service", "team/torch"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        open(place / "err", "wb") as errors,
        running_process(command, env=env, stderr=errors, **pipes) as process,
    ):
        yield Service(process)
