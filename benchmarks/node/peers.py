"""Measure what leaves a registry when the agents of a network start at once and give each other packs.

A real registry on loopback serves one pack; a relay in front of it counts every byte of both directions,
signed manifests and heads of HTTP too. The agents are those of ``cachesvc node``, each with a store
and an address of loopback of its own, many in one process. Rows: without peers; with them; with a process of
agents killed while it gives packs; with one in ten agents sending other bytes. Exit status 1 if with peers
more than 5 % of all packs passed, or an agent has not its pack. Usage: ``python -m benchmarks.node.peers``
(``--quick``: 20 agents, a pack of 2 MiB, and no bound).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hosts import ROOT, Failed, Host, Registry, registry
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.manifest.records import PackRecord
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.peers import PackOffer, PeersAnswer, PeersRequest

from .__main__ import NAME, free_port, publish
from .agents import REASONS, AgentsTask
from .hostile_peer import HostilePeer
from .relay import CountingRelay
from .report import report_rows

NETWORK = "127.78.0.0/16"
MOST_SHARE = 0.05
"""Share of all packs that may leave the registry."""
_SECONDS = 600.0
"""Seconds that a row may take."""


@dataclass
class Network:
    """Holds what a row needs. ``agents``: their number; ``each``: how many of them are in one process.
    ``most``: share of all packs that may leave the registry. ``pack``: what is published."""

    served: Registry
    relay: CountingRelay
    folder: Path
    agents: int
    each: int
    most: float
    pack: PackRecord

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of all agents."""
        return [f"127.78.{number // 250}.{number % 250 + 1}" for number in range(self.agents)]


@dataclass
class Agents:
    """Runs processes of agents. ``lines``: what each process printed; ``ready``: how many agents each has."""

    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    lines: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    ended: int = 0

    @property
    def living(self) -> int:
        """Return the number of agents that were not killed."""
        return sum(number for pid, number in self.ready.items() if pid not in self.killed)

    def lines_of_living(self) -> list[dict[str, Any]]:
        """Return what the agents that were not killed printed."""
        return [line for pid, lines in self.lines.items() if pid not in self.killed for line in list(lines)]

    def read(self, process: subprocess.Popen[str]) -> None:
        """Read the lines of a process until it ends, on a thread."""
        assert process.stdout is not None
        for line in process.stdout:
            row = json.loads(line)
            if "ready" in row:
                self.ready[process.pid] = row["ready"]
            else:
                self.lines[process.pid].append(row)
        self.ended += 1

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a process with all its agents."""
        self.killed.add(process.pid)
        process.kill()


def main() -> int:
    options = _options()
    return report_rows(options.json, lambda folder: _measure(options, folder))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.node.peers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--agents", type=int, default=200, help="agents that start at once; default: 200")
    parser.add_argument("--processes", type=int, default=8, help="processes of agents; default: 8")
    parser.add_argument("--pack", type=int, default=8, help="MiB of the pack; default: 8")
    parser.add_argument("--quick", action="store_true", help="20 agents, a pack of 2 MiB, no bound")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS], help="default: all")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "node_peers.json")
    options = parser.parse_args()
    if options.quick:
        options.agents, options.processes, options.pack = 20, 4, 2
    options.rows = options.rows or [*ROWS]
    return options


def _measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    each, most = -(-options.agents // options.processes), 1.0 if options.quick else MOST_SHARE
    for number, name in enumerate(options.rows):
        place = folder / str(number)  # a registry of its own, which knows no agent of an earlier row
        with (
            registry(place / "registry", CACHESVC_SERVER_PEERS="1") as served,
            CountingRelay(served.url.removeprefix("http://")).running() as relay,
        ):
            assert isinstance(relay, CountingRelay)
            pack = publish(served, place, options.pack << 20)
            network = Network(served, relay, place, options.agents, each, most, pack)
            rows.append({"row": name, **ROWS[name](network)})
            _show(rows[-1])
    return rows


def without_peers(network: Network) -> dict[str, Any]:
    """Start the agents as they are by default: each asks the registry."""
    return _row(network, network.addresses, port=0, most=2.0)


def with_peers(network: Network) -> dict[str, Any]:
    return _row(network, network.addresses, free_port())


def killed(network: Network) -> dict[str, Any]:
    """Kill the process of the first agent that has its pack, with all its agents, while it gives the pack."""

    def kill(agents: Agents) -> None:
        _wait_until(lambda: bool(agents.lines_of_living()))
        agents.kill(next(process for process in agents.processes if agents.lines[process.pid]))

    return _row(network, network.addresses, free_port(), kill)


def lying(network: Network) -> dict[str, Any]:
    """Have one in ten agents send other bytes. They offer the pack before anybody has it."""
    addresses, port = network.addresses, free_port()
    liars, honest = addresses[: network.agents // 10], addresses[network.agents // 10 :]
    with ExitStack() as stack:
        for address in liars:
            stack.enter_context(HostilePeer(address, port, "lies").listening())
            _offer(network, address)
        row = _row(network, honest, port)
    return row | {"liars": len(liars)}


def _offer(network: Network, address: str) -> None:
    offer = PackOffer(network.pack.digest, secrets.token_hex(32))
    request = PeersRequest(Name.parse(NAME).namespace, secrets.token_hex(16), address, (offer,))
    with Remote(network.served.url, network.served.token) as remote:
        remote.call("POST", "/v1/peers", request, PeersAnswer)


def _row(
    network: Network,
    addresses: Sequence[str],
    port: int,
    meanwhile: Callable[[Agents], None] = lambda _agents: None,
    most: float | None = None,
) -> dict[str, Any]:
    """Start agents at one moment, and return the row of a table when all that live have their pack."""
    before = network.relay.passed
    with _started(network, addresses, port) as agents:
        meanwhile(agents)
        lost = len(addresses) - agents.living
        _wait_until(lambda: len(agents.lines_of_living()) >= agents.living)
        lines, passed = agents.lines_of_living(), network.relay.passed - before
    return _summary(network, len(addresses), lost, lines, passed, network.most if most is None else most)


def _summary(
    network: Network, agents: int, lost: int, lines: list[dict[str, Any]], passed: int, most: float
) -> dict[str, Any]:
    whole = sum(1 for line in lines if line["packs"] == 1 and not line["problem"])
    share = passed / (agents * network.pack.size)
    broken = [] if share <= most else [f"{share:.1%} of all packs, {most:.0%} at most"]
    broken += [] if whole >= agents - lost else [f"{agents - lost - whole} agents have not their pack"]
    broken += sorted({line["problem"] for line in lines if line["problem"]})
    seconds = sorted(line["seconds"] for line in lines)
    return {
        "agents": agents,
        "killed": lost,
        "whole": whole,
        "pack_bytes": network.pack.size,
        "registry_bytes": passed,
        "registry_pack_bytes": round(sum(line["from_registry"] for line in lines)),
        "peer_bytes": round(sum(line["from_peers"] for line in lines)),
        "share": round(share, 4),
        "failures": {reason: round(sum(line[reason] for line in lines)) for reason in REASONS},
        "seconds_p50": round(seconds[len(seconds) // 2], 2),
        "seconds_max": round(seconds[-1], 2),
        "broken": broken,
    }


@contextlib.contextmanager
def _started(network: Network, addresses: Sequence[str], port: int) -> Iterator[Agents]:
    agents, parts = Agents(), _parts(addresses, network.each)
    with tempfile.TemporaryDirectory(dir=network.folder) as folder:
        try:
            for part in parts:
                task = AgentsTask(_variables(network), NAME, folder, part, NETWORK, port)
                _start(network, agents, task)
            _wait_until(lambda: sum(agents.ready.values()) == len(addresses))
            for process in agents.processes:
                _write(process, repr(time.time() + 2.0))
            yield agents
        finally:
            for process in agents.processes:
                process.kill()
                process.wait()
            _wait_until(lambda: agents.ended == len(agents.processes))


def _start(network: Network, agents: Agents, task: AgentsTask) -> None:
    errors = open(network.folder / "agents.log", "ab")  # noqa: SIM115 -- the process has it
    with errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.node.agents"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=Host(network.folder / "host").environment(),
        )
    agents.processes.append(process)
    agents.lines[process.pid] = []
    threading.Thread(target=agents.read, args=(process,), daemon=True).start()
    _write(process, json.dumps(asdict(task)))


def _write(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _variables(network: Network) -> dict[str, str]:
    return {
        "CACHESVC_URL": network.relay.url,
        "CACHESVC_TOKEN": network.served.token,
        "CACHESVC_TRUSTED_KEYS": network.served.trust,
    }


def _parts(addresses: Sequence[str], each: int) -> list[list[str]]:
    return [list(addresses[start : start + each]) for start in range(0, len(addresses), each)]


def _wait_until(what: Callable[[], bool]) -> None:
    until = time.monotonic() + _SECONDS
    while not what():
        if time.monotonic() > until:
            raise Failed("it did not happen in time")
        time.sleep(0.02)


ROWS: dict[str, Callable[[Network], dict[str, Any]]] = {
    "without peers": without_peers,
    "peers": with_peers,
    "peers, a process killed": killed,
    "peers, one in ten lies": lying,
}
"""The rows of the table, in their order."""


def _show(row: dict[str, Any]) -> None:
    print(
        f"{row['row']:24} {row['whole']:3} of {row['agents']:3} agents  {row['registry_bytes']:13,} bytes of "
        f"the registry = {row['share']:7.2%} of all packs  p50 {row['seconds_p50']:6.2f} max "
        f"{row['seconds_max']:6.2f} s  {'; '.join(row['broken'])}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
