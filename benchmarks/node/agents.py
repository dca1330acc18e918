"""Be several agents of one network, each on a thread with a store and an address of its own.

Reads one line of JSON from stdin (`AgentsTask`), says that it is ready, and reads the second of UTC at which
each agent does one round. Prints a line of JSON as each round ends, and gives packs until stdin ends."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachesvc.agent.measures import Measures
from cachesvc.agent.peers.options import PeerOptions
from cachesvc.agent.peers.peers import Peers
from cachesvc.agent.peers.server import serve_packs
from cachesvc.agent.round import Keeper, Selection
from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc.agent.watch import Pattern
from cachesvc_client.config.settings import Config
from cachesvc_client.http.origin import parse_networks
from cachesvc_client.wire.errors import CacheSvcError


@dataclass(frozen=True, slots=True)
class AgentsTask:
    """Says what the agents of a process do. ``variables``: those of a service. ``port``: at which all of them
    give packs; 0: they exchange none."""

    variables: dict[str, str]
    name: str
    folder: str
    addresses: list[str]
    network: str
    port: int


REASONS = ("busy", "gone", "slow", "lied", "refused")
"""Why a peer gave nothing."""
_printing = threading.Lock()


def main() -> None:
    task = AgentsTask(**json.loads(sys.stdin.readline()))
    config = Config.read(task.variables)
    with contextlib.ExitStack() as stack:
        agents = [_agent(stack, task, config, address) for address in task.addresses]
        _print({"ready": len(agents)})
        begin = float(sys.stdin.readline())
        for keeper, measures in agents:
            threading.Thread(target=_round, args=(begin, keeper, measures), daemon=True).start()
        sys.stdin.read()


def _agent(
    stack: contextlib.ExitStack, task: AgentsTask, config: Config, address: str
) -> tuple[Keeper, Measures]:
    store, measures = SharedStoreWriter(Path(task.folder) / address, 1 << 40), Measures()
    stack.enter_context(store.held())
    peers = None
    if task.port:
        options = PeerOptions(address, task.port, parse_networks(task.network))
        peers = Peers(options, store, measures)
        stack.enter_context(serve_packs(peers.shelf, options, measures))
    selection = Selection((Pattern.parse(task.name),))
    return Keeper(config, selection, store, measures, peers), measures


def _round(begin: float, keeper: Keeper, measures: Measures) -> None:
    time.sleep(max(0.0, begin - time.time()))
    began, problem = time.monotonic(), ""
    try:
        keeper.round()
    except CacheSvcError as error:
        problem = str(error)
    row: dict[str, Any] = {
        "seconds": time.monotonic() - began,
        "packs": measures.value("packs"),
        "from_registry": measures.value("downloaded_bytes_total"),
        "from_peers": measures.value("peer_received_bytes_total"),
        **{reason: measures.value("peer_failures_total", reason) for reason in REASONS},
        "problem": problem,
    }
    _print(row)


def _print(row: dict[str, Any]) -> None:
    with _printing:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
