"""Attack agents as an insider: who reads the namespace, has a node of the network, and knows the protocol."""

from __future__ import annotations

import contextlib
import gzip
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.node.hostile_peer import HostilePeer
from cachesvc.agent.peers import download as download_module
from cachesvc.agent.peers import server as server_module
from cachesvc.agent.peers.patience import Patience
from cachesvc_client.wire.digest import Digest

from .conftest import Published, Publisher
from .peer_nodes import PeerNode, announce, new_address, peer_node, peer_port, sources
from .test_hostile_peers import check_pack

FRAMES = 10_000_000
"""Bytes of a pack of three frames."""
HEAD = b"HTTP/1.1 206 Partial Content\r\n"


class Insider(HostilePeer):
    """Answers as an agent would, but for one thing. ``truth``: the whole pack."""

    def _head(self, more: bytes = b"") -> bytes:
        size = len(self.truth)
        return HEAD + b"Content-Range: bytes 0-%d/%d\r\n%s\r\n" % (size - 1, size, more)

    def _hangs_up(self, connection: socket.socket, _head: bytes) -> None:
        length = b"Content-Length: %d\r\n" % len(self.truth)
        connection.sendall(self._head(length) + self.truth[: len(self.truth) // 2])

    def _sends_a_bomb(self, connection: socket.socket, _head: bytes) -> None:
        bomb = gzip.compress(bytes(64 << 20))
        length = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(self.truth)
        connection.sendall(self._head(length) + bomb + bytes(len(self.truth) - len(bomb)))

    def _says_wait(self, connection: socket.socket, _head: bytes) -> None:
        while True:
            connection.sendall(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n")
            time.sleep(0.01)

    def _has_a_head_without_end(self, connection: socket.socket, _head: bytes) -> None:
        connection.sendall(HEAD)
        for number in range(10_000):
            connection.sendall(b"X-%d: %s\r\n" % (number, b"y" * 1000))

    def _has_a_chunk_without_end(self, connection: socket.socket, _head: bytes) -> None:
        connection.sendall(self._head(b"Transfer-Encoding: chunked\r\n") + b"fffffffffffff\r\n")
        while True:
            connection.sendall(bytes(1 << 16))

    def _answers_other_bytes_than_asked_for(self, connection: socket.socket, _head: bytes) -> None:
        size = len(self.truth)
        span = b"Content-Range: bytes 8-%d/%d\r\nContent-Length: %d\r\n\r\n" % (size - 1, size, size - 8)
        connection.sendall(HEAD + span + self.truth[8:])

    def _answers_without_a_range(self, connection: socket.socket, _head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.truth) + self.truth)

    def _sends_more(self, connection: socket.socket, _head: bytes) -> None:
        connection.sendall(self._head() + self.truth)
        while True:
            connection.sendall(b"x" * 65536)


REASONS = {
    "hangs up": "gone",
    "sends a bomb": "lied",
    "says wait": "slow",
    "has a head without end": "lied",
    "has a chunk without end": "lied",
    "answers other bytes than asked for": "lied",
    "answers without a range": "refused",
}


def whole_pack(network: Publisher, name: str, pack: Published, port: int, root: Path) -> bytes:
    """Return the bytes of a pack, as a node gets it."""
    with peer_node(network, root, port, name) as node:
        node.keeper.round()
        return (node.root / "v1" / "packs" / pack.pack[7:]).read_bytes()


@contextlib.contextmanager
def insider(network: Publisher, name: str, pack: Published, port: int, behaviour, truth) -> Iterator[Insider]:
    with Insider(new_address(), port, behaviour, truth=truth).listening() as peer:  # type: ignore[arg-type]
        announce(network, name, pack, peer.address)
        yield peer  # type: ignore[misc]


@pytest.mark.parametrize("behaviour", REASONS)
def test_an_insider_that_answers_in_another_way_costs_one_try(
    network: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    monkeypatch.setattr(download_module, "_STALL_SECONDS", 1.0)
    monkeypatch.setattr(download_module, "GRACE_SECONDS", 2.0)
    name, port = f"{behaviour.replace(' ', '-')}/bert", peer_port()
    pack = network.publish(name, seed=1, size=FRAMES)
    truth = whole_pack(network, name, pack, port, tmp_path / "honest")
    with (
        insider(network, name, pack, port, behaviour, truth) as peer,
        peer_node(network, tmp_path / "a", port, name) as node,
    ):
        node.keeper.round()
        check_pack(node, pack)
        assert node.value("peer_failures_total", REASONS[behaviour]) >= 1
        assert len(peer.requests) == 1
        received = node.value("peer_received_bytes_total")
        assert (received > 0) == (behaviour == "hangs up") and received < len(truth)
        assert received + node.value("downloaded_bytes_total") == len(truth)


def test_what_an_insider_sends_behind_the_pack_is_not_read(network: Publisher, tmp_path: Path) -> None:
    pack, port = network.publish("longer/bert", seed=1), peer_port()
    truth = whole_pack(network, "longer/bert", pack, port, tmp_path / "honest")
    with (
        insider(network, "longer/bert", pack, port, "sends more", truth),
        peer_node(network, tmp_path / "a", port, "longer/*") as node,
    ):
        node.keeper.round()
        check_pack(node, pack)


def test_an_insider_that_claims_to_hold_everything_holds_nobody_up_for_long(
    network: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many agents of his offer every pack as the registry keeps, all at addresses where nobody is."""
    monkeypatch.setattr(Patience, "of", lambda _sizes: Patience(2.0, 10.0))
    packs = [network.publish(f"everything/m{number}", seed=number) for number in range(3)]
    for pack in packs:
        for _ in range(40):
            announce(network, "everything/bert", pack, new_address())
    with peer_node(network, tmp_path / "a", peer_port(), "everything/*") as node:
        began = time.monotonic()
        node.keeper.round()
        assert time.monotonic() - began < 30
        assert node.packs() == {pack.pack for pack in packs}
        assert node.value("peer_received_bytes_total") == 0


def quarantine(network: Publisher, pack: Published) -> None:
    answer = httpx.put(
        f"{network.served.url}/v1/revisions/{pack.revision}/quarantine",
        json={"why": "hostile"},
        headers={"Authorization": f"Bearer {network.served.token}"},
    )
    assert answer.status_code < 300, answer.text


def test_a_pack_that_was_withdrawn_leaves_no_peer(network: Publisher, tmp_path: Path) -> None:
    """The registry names nobody who has it, at once; a capability from before ends with the next round."""
    name, port = "withdrawn/bert", peer_port()
    pack = network.publish(name, seed=1)
    with peer_node(network, tmp_path / "a", port, name, keep_seconds=3600.0) as node:
        node.keeper.round()
        [source] = sources(network, "withdrawn", pack.pack).sources
        url = f"http://{source.address}:{port}/v1/packs/{pack.pack[7:]}/{source.capability}"
        assert httpx.get(url).status_code == 206
        quarantine(network, pack)
        assert sources(network, "withdrawn", pack.pack).sources == ()
        announce(network, name, pack, new_address())  # nor does anybody who offers it again
        assert sources(network, "withdrawn", pack.pack).sources == ()
        time.sleep(5.5)  # the answer that replicas remember
        node.keeper.round()
        assert node.packs() == {pack.pack}, "services of the node keep it for a while"
        assert httpx.get(url).status_code == 404
        fresh = node.peers.shelf.capability(Digest(pack.pack))
        assert httpx.get(url.replace(source.capability, fresh)).status_code == 404


@pytest.fixture
def giving(network: Publisher, tmp_path: Path) -> Iterator[tuple[PeerNode, str]]:
    """A node that gives a large pack, and the pack's path."""
    name = f"shares-{secrets.token_hex(4)}/bert"
    pack, port = network.publish(name, seed=1, size=30_000_000), peer_port()
    with peer_node(network, tmp_path / "a", port, name) as node:
        node.keeper.round()
        yield node, f"/v1/packs/{pack.pack[7:]}/{node.peers.shelf.capability(Digest(pack.pack))}"


def connected(node: PeerNode, address: str) -> socket.socket:
    where = (node.options.address, node.options.port)
    return socket.create_connection(where, timeout=30, source_address=(address, 0))


def status_from(node: PeerNode, address: str, path: str) -> int:
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address)) as client:
        url = f"http://{node.options.address}:{node.options.port}{path}"
        return client.get(url, headers={"Range": "bytes=0-99"}).status_code


def test_one_address_does_not_take_all_connections(giving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 60.0)
    node, path = giving
    with contextlib.ExitStack() as held:
        for _ in range(server_module.MAX_CONNECTIONS + 8):
            held.enter_context(connected(node, "127.77.0.99")).sendall(b"GET /v1/pa")
        time.sleep(0.5)
        assert status_from(node, new_address(), path) == 206
        with pytest.raises(httpx.HTTPError):
            status_from(node, "127.77.0.99", path)
    until = time.monotonic() + 30
    while time.monotonic() < until:  # what was held is given back
        with contextlib.suppress(httpx.HTTPError):
            if status_from(node, "127.77.0.99", path) == 206:
                return
    raise AssertionError("the address has no connection left")


def test_one_address_does_not_take_all_transfers(giving) -> None:
    """It asks for the whole pack as often as it can, and reads nothing."""
    node, path = giving
    with contextlib.ExitStack() as held:
        for _ in range(server_module.CONNECTIONS_OF_ONE):
            line = held.enter_context(connected(node, "127.77.0.99"))
            line.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        time.sleep(0.5)
        assert status_from(node, new_address(), path) == 206


def test_agents_come_from_their_own_addresses(network: Publisher, tmp_path: Path) -> None:
    """So the share of each is its own, also where a machine has several addresses."""
    name, port = "own-address/bert", peer_port()
    pack = network.publish(name, seed=1)
    with (
        peer_node(network, tmp_path / "a", port, name) as node,
        socket.create_server((new_address(), port)) as listener,
    ):
        announce(network, name, pack, listener.getsockname()[0])
        seen: list[str] = []

        def accept() -> None:
            connection, (address, _) = listener.accept()
            seen.append(address)
            connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        node.keeper.round()
        thread.join(10)
        check_pack(node, pack)
        assert seen == [node.options.address]
