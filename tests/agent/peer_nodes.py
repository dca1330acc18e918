"""Nodes of one network for the tests: real agents with addresses of loopback, and what registries tell."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cachesvc.agent.measures import Measures
from cachesvc.agent.peers.options import PeerOptions
from cachesvc.agent.peers.peers import Peers
from cachesvc.agent.peers.server import serve_packs
from cachesvc.agent.round import Keeper, Selection
from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc.agent.watch import Pattern
from cachesvc_client.http.origin import parse_networks
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Name, Namespace
from cachesvc_client.wire.requests.peers import PackOffer, PackSources, PackWant, PeersAnswer, PeersRequest

from .conftest import Published, Publisher

NETWORK = parse_networks("127.77.0.0/16")
_numbers = itertools.count(1)


def peer_port() -> int:
    """Return a port that is free at every address of the tests' network."""
    with socket.create_server(("127.77.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def new_address() -> str:
    """Return an address of the tests' network that no other agent of this process has."""
    number = next(_numbers)
    return f"127.77.{number // 250 + 1}.{number % 250 + 1}"


@dataclass
class PeerNode:
    """A node whose agent exchanges packs with others, in this process."""

    root: Path
    measures: Measures
    peers: Peers
    keeper: Keeper
    options: PeerOptions

    def value(self, name: str, label: str = "") -> float:
        return self.measures.value(name, label)

    def packs(self) -> set[str]:
        """Return the packs in the store, as their digests."""
        return {f"sha256:{path.name}" for path in (self.root / "v1" / "packs").iterdir()}


@contextlib.contextmanager
def peer_node(
    publisher: Publisher,
    root: Path,
    port: int,
    pattern: str,
    bound: int = 1 << 30,
    keep_seconds: float = 0.0,
) -> Iterator[PeerNode]:
    """Serve packs at a new address; the test does the rounds."""
    options = PeerOptions(new_address(), port, NETWORK)
    store, measures = SharedStoreWriter(root, bound), Measures()
    peers = Peers(options, store, measures)
    selection = Selection((Pattern.parse(pattern),), keep_seconds=keep_seconds)
    keeper = Keeper(publisher.config, selection, store, measures, peers)
    with store.held(), serve_packs(peers.shelf, options, measures):
        yield PeerNode(root, measures, peers, keeper, options)


def ask_peers(remote: Remote, request: PeersRequest) -> PeersAnswer:
    """Send what an agent sends."""
    return remote.call("POST", "/v1/peers", request, PeersAnswer)


def announce(publisher: Publisher, name: str, pack: Published, address: str) -> None:
    """Offer a pack at an address, as any holder of a token that reads can."""
    offer = PackOffer(Digest(pack.pack), secrets.token_hex(32))
    request = PeersRequest(Name.parse(name).namespace, secrets.token_hex(16), address, (offer,))
    with Remote(publisher.served.url, publisher.served.token) as remote:
        ask_peers(remote, request)


def sources(publisher: Publisher, namespace: str, pack: str, token: str | None = None) -> PackSources:
    """Ask the registry who has a pack, as another agent."""
    want = PackWant(Digest(pack), 1000)
    request = PeersRequest(Namespace(namespace), secrets.token_hex(16), "127.77.0.1", wants=(want,))
    with Remote(publisher.served.url, token or publisher.served.token) as remote:
        return ask_peers(remote, request).packs[0]
