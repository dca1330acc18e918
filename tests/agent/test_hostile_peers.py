"""Attack an agent as a peer, as a tenant who reaches its port, and as a registry that names peers."""

from __future__ import annotations

import contextlib
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
from cachesvc.agent.peers import shelf as shelf_module
from cachesvc.agent.peers.options import PeerOptions
from cachesvc.agent.peers.patience import Patience
from cachesvc.agent.peers.shelf import Shelf
from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc_client.http.origin import parse_networks
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Forbidden
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.peers import PeersRequest

from .conftest import Publisher
from .peer_nodes import PeerNode, announce, ask_peers, new_address, peer_node, peer_port, sources

FRAMES = 10_000_000
"""Bytes of a pack of three frames."""


@contextlib.contextmanager
def hostile(network: Publisher, name: str, pack, port: int, behaviour, **more) -> Iterator[HostilePeer]:
    """Offer a pack as a peer that does not give it."""
    with HostilePeer(new_address(), port, behaviour, **more).listening() as peer:
        announce(network, name, pack, peer.address)
        yield peer


def check_pack(node: PeerNode, pack) -> None:
    """Fail unless the store holds exactly this pack, whole."""
    assert node.packs() == {pack.pack}
    assert Digest.of((node.root / "v1" / "packs" / pack.pack[7:]).read_bytes()) == pack.pack


REASONS = {
    "lies": "lied",
    "redirects": "refused",
    "has nothing": "refused",
    "drips": "slow",
    "is silent": "slow",
}
"""For what an agent leaves a peer alone, by how it behaves."""


@pytest.mark.parametrize("behaviour", REASONS)
def test_a_peer_that_gives_no_pack_is_left_alone_and_the_registry_asked(
    network: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour
) -> None:
    monkeypatch.setattr(download_module, "_STALL_SECONDS", 1.0)
    monkeypatch.setattr(download_module, "GRACE_SECONDS", 2.0)
    name = f"bad-{behaviour.replace(' ', '-')}/bert"
    first, port = network.publish(name, seed=1), peer_port()
    with (
        hostile(network, name, first, port, behaviour, location=f"{network.served.url}/v1/info") as peer,
        peer_node(network, tmp_path / "a", port, name) as node,
    ):
        node.keeper.round()
        check_pack(node, first)
        assert node.value("peer_received_bytes_total") == 0
        assert node.value("peer_failures_total", REASONS[behaviour]) == 1
        assert len(peer.requests) == 1
        second = network.publish(name, seed=2)
        announce(network, name, second, peer.address)
        # The registry knows the peer by a new identity now. Who lied or was slow is left alone at its address
        # too; of who merely had not what was offered nobody knows who made the offer.
        node.keeper.round()
        check_pack(node, second)
        assert len(peer.requests) == (2 if behaviour in ("has nothing", "redirects") else 1)


def test_what_a_peer_gave_before_it_lied_counts_and_the_lie_costs_one_frame(
    network: Publisher, tmp_path: Path
) -> None:
    pack, port = network.publish("late/bert", seed=1, size=FRAMES), peer_port()
    with peer_node(network, tmp_path / "honest", port, "late/*") as honest:
        honest.keeper.round()
        whole = (honest.root / "v1" / "packs" / pack.pack[7:]).read_bytes()
    # The honest one is gone now, and its offer is not.
    with (
        hostile(network, "late/bert", pack, port, "lies late", truth=whole[:5_000_000]),
        peer_node(network, tmp_path / "a", port, "late/*") as node,
    ):
        node.keeper.round()
        check_pack(node, pack)
        received = node.value("peer_received_bytes_total")
        assert 4_000_000 < received < 5_000_000
        assert received + node.value("downloaded_bytes_total") == len(whole)


def test_a_slow_peer_holds_an_agent_up_for_a_bounded_time(
    network: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "GRACE_SECONDS", 2.0)
    pack, port = network.publish("slow/bert", seed=1), peer_port()
    with (
        hostile(network, "slow/bert", pack, port, "drips") as peer,
        peer_node(network, tmp_path / "a", port, "slow/*") as node,
    ):
        node.keeper.round()
        check_pack(node, pack)
        assert len(peer.requests) == 1
        assert node.peers._avoided.now()


def test_peers_that_are_always_busy_hold_an_agent_up_until_its_patience_ends(
    network: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patience, "of", lambda _sizes: Patience(1.0, 60.0))
    monkeypatch.setattr(server_module, "MAX_TRANSFERS", 0)
    pack, port = network.publish("busy/bert", seed=1), peer_port()
    with (
        peer_node(network, tmp_path / "busy", port, "busy/*") as busy,
        peer_node(network, tmp_path / "a", port, "busy/*") as node,
    ):
        busy.keeper.round()
        node.keeper.round()
        check_pack(node, pack)
        assert node.value("peer_failures_total", "busy") > 0
        assert node.value("peer_received_bytes_total") == 0


def test_a_registry_that_names_other_addresses_has_none_of_them_called(
    network: Publisher, tmp_path: Path
) -> None:
    """Of the network, with another port; a loopback address outside of it; a cloud's metadata service."""
    pack, port = network.publish("outside/bert", seed=1), peer_port()
    with HostilePeer("127.0.0.1", port, "lies").listening() as outside:
        for address in ("127.0.0.1", "169.254.169.254", "::1", "10.0.0.1"):
            announce(network, "outside/bert", pack, address)
        with peer_node(network, tmp_path / "a", port, "outside/*") as node:
            node.keeper.round()
            check_pack(node, pack)
            assert node.value("peer_failures_total", "address") == 4
        assert outside.requests == []


@pytest.mark.parametrize(
    ("networks", "address", "permitted"),
    [
        ("10.4.0.0/16", "10.4.0.17", True),
        ("10.4.0.0/16", "10.5.0.17", False),
        ("0.0.0.0/0", "127.0.0.1", False),
        ("0.0.0.0/0", "169.254.169.254", False),
        ("0.0.0.0/0", "0.0.0.0", False),
        ("0.0.0.0/0", "224.0.0.1", False),
        ("0.0.0.0/0", "10.4.0.17", True),
        ("127.0.0.0/8", "127.1.2.3", True),
        ("169.254.0.0/16", "169.254.1.1", True),
        ("::/0", "::1", False),
        ("::/0", "fe80::1", False),
        ("::/0", "::ffff:127.0.0.1", False),
        ("::/0", "::ffff:169.254.169.254", False),
        ("::/0", "64:ff9b::7f00:1", False),
        ("fd00::/8", "fd00::1", True),
        ("10.0.0.0/8", "fd00::1", False),
        ("10.0.0.0/8", "10.1", False),
        ("10.0.0.0/8", "agent.example", False),
    ],
)
def test_loopback_and_metadata_services_are_called_only_where_they_are_named(
    networks: str, address: str, permitted: bool
) -> None:
    own = "10.4.0.1" if "." in networks else "fd00::9"
    parsed = parse_networks(f"{networks},{own}")
    assert PeerOptions(own, 8752, parsed).permits(address) is permitted


def test_a_peer_learns_no_token_and_nothing_of_the_agents_surroundings(
    network: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:password@127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://user:password@127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    pack, port = network.publish("quiet/bert", seed=1), peer_port()
    with (
        hostile(network, "quiet/bert", pack, port, "has nothing") as peer,
        peer_node(network, tmp_path / "a", port, "quiet/*") as node,
    ):
        node.keeper.round()
    [request] = peer.requests
    names = {line.partition(b":")[0].lower() for line in request.split(b"\r\n")[1:] if line}
    assert names == {b"host", b"range", b"accept-encoding"}
    assert network.served.token.encode() not in request


@pytest.fixture
def giving(network: Publisher, tmp_path: Path) -> Iterator[tuple[PeerNode, str, str]]:
    """A node that gives one pack: with the pack's path, and the path without its capability."""
    name = f"giving-{time.monotonic_ns()}/bert"
    pack, port = network.publish(name, seed=1), peer_port()
    with peer_node(network, tmp_path / "a", port, name) as node:
        node.keeper.round()
        capability = node.peers.shelf.capability(Digest(pack.pack))
        yield node, f"/v1/packs/{pack.pack[7:]}/{capability}", f"/v1/packs/{pack.pack[7:]}/"


def url(node: PeerNode) -> str:
    return f"http://{node.options.address}:{node.options.port}"


def test_a_tenant_who_reaches_the_port_learns_nothing_without_a_capability(giving) -> None:
    node, path, without = giving
    with httpx.Client(base_url=url(node)) as client:
        assert client.get(path).status_code == 206
        absent = f"/v1/packs/{'0' * 64}/{path[-64:]}"
        for other in (
            "/",
            "/v1/packs",
            "/v1/packs/",
            without,
            without + "0" * 64,
            absent,
            path + "/",
            path + "?a",
        ):
            answer = client.get(other)
            assert (answer.status_code, answer.content) == (404, b""), other
            assert set(answer.headers) == {"content-length", "connection"}
        for other in (path.replace("packs", "lists"), path.upper(), f"{path[:10]}/{path[10:]}"):
            assert client.get(other).status_code == 404, other
        for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            assert client.request(method, path).status_code == 404, method
        for span in ("bytes=5-2", "bytes=0-99999999", "bytes=99999999-99999999"):
            assert client.get(path, headers={"Range": span}).status_code == 416, span


def test_a_tenant_of_another_namespace_learns_no_capability(network: Publisher, giving) -> None:
    _, path, _ = giving
    created = httpx.post(
        f"{network.served.url}/v1/tokens",
        json={"label": "other", "role": "read", "namespace": "elsewhere"},
        headers={"Authorization": f"Bearer {network.served.token}"},
    ).json()
    pack = f"sha256:{path[10:74]}"
    namespace = giving[0].keeper._selection.patterns[0].namespace
    assert sources(network, namespace, pack).sources
    with pytest.raises(Forbidden):
        sources(network, namespace, pack, created["secret"])
    assert sources(network, "elsewhere", pack, created["secret"]).sources == ()


def test_a_lanes_token_neither_offers_nor_asks(network: Publisher) -> None:
    created = httpx.post(
        f"{network.served.url}/v1/tokens",
        json={"label": "lane", "role": "write", "namespace": "team", "lane": "pr-1"},
        headers={"Authorization": f"Bearer {network.served.token}"},
    ).json()
    with pytest.raises(Forbidden, match="lane pr-1"):
        sources(network, "team", f"sha256:{'0' * 64}", created["secret"])


def test_a_stolen_capability_opens_one_pack_and_not_for_long(tmp_path: Path) -> None:
    now = 10_000.0
    store = SharedStoreWriter(tmp_path / "store")
    shelf, packs = Shelf(store, lambda: now), []
    for content in (b"one", b"two"):
        packs.append(Digest.of(content))
        store.pack_path(packs[-1].hex).write_bytes(content)
        shelf.put(packs[-1], 3)
    stolen = shelf.capability(packs[0])
    opened = shelf.open(packs[0].hex, stolen)
    assert opened is not None
    with opened:
        assert opened.read() == b"one"
    assert shelf.open(packs[1].hex, stolen) is None
    assert Shelf(store, lambda: now).capability(packs[0]) != stolen
    now += 2 * shelf_module.ROTATION_SECONDS
    assert shelf.open(packs[0].hex, stolen) is None
    shelf.remove(packs[0].hex)
    assert shelf.open(packs[0].hex, shelf.capability(packs[0])) is None


def test_a_link_or_another_file_in_the_place_of_a_pack_is_not_given(tmp_path: Path) -> None:
    store = SharedStoreWriter(tmp_path / "store")
    shelf, pack = Shelf(store), Digest.of(b"one")
    (tmp_path / "secret").write_bytes(b"two")
    store.pack_path(pack.hex).symlink_to(tmp_path / "secret")
    shelf.put(pack, 3)
    assert shelf.open(pack.hex, shelf.capability(pack)) is None
    store.pack_path(pack.hex).unlink()
    store.pack_path(pack.hex).write_bytes(b"longer")
    assert shelf.open(pack.hex, shelf.capability(pack)) is None


def test_who_holds_connections_open_is_closed_and_others_are_served_then(
    giving, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, path, _ = giving
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 1.0)
    lines = []
    for _ in range(server_module.MAX_CONNECTIONS + 10):
        line = socket.create_connection((node.options.address, node.options.port), timeout=30)
        line.sendall(b"GET /v1/pa")
        lines.append(line)
    assert threading.active_count() < server_module.MAX_CONNECTIONS + 40
    for line in lines:
        with line, contextlib.suppress(ConnectionError):
            assert line.recv(100) == b""
    until, status = time.monotonic() + 30, 0
    while status != 206 and time.monotonic() < until:
        with contextlib.suppress(httpx.HTTPError):
            status = httpx.get(url(node) + path).status_code
    assert status == 206


def test_who_reads_slowly_loses_the_transfer(
    network: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(server_module, "LEAST_RATE", 1 << 30)
    pack, port = network.publish("reader/bert", seed=1, size=30_000_000), peer_port()
    with peer_node(network, tmp_path / "a", port, "reader/*") as node:
        node.keeper.round()
        path = f"/v1/packs/{pack.pack[7:]}/{node.peers.shelf.capability(Digest(pack.pack))}"
        with socket.create_connection((node.options.address, port), timeout=30) as line:
            line.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            time.sleep(2.0)
            size = 0
            with contextlib.suppress(ConnectionError):
                while data := line.recv(1 << 20):
                    size += len(data)
        assert size < 30_000_000


def test_a_request_of_another_size_or_form_is_refused_by_the_registry(network: Publisher) -> None:
    good = {"namespace": "team", "agent": "0" * 32, "address": "10.0.0.1"}
    offer = {"pack": f"sha256:{'0' * 64}", "capability": "0" * 64}
    headers = {"Authorization": f"Bearer {network.served.token}"}
    with httpx.Client(base_url=network.served.url, headers=headers) as client:
        assert client.post("/v1/peers", json=good).status_code == 200
        for wrong in (
            {"address": "host.example"},
            {"address": "10.0.0.1:80"},
            {"address": "fe80::1%eth0"},
            {"address": "http://10.0.0.1"},
            {"agent": "x"},
            {"offers": [offer] * 65},
            {"offers": [{**offer, "capability": "../../etc/passwd"}]},
            {"wants": [{"pack": offer["pack"], "size": 1}] * 9},
            {"wants": [{"pack": offer["pack"], "size": 0}]},
            {"failed": ["0" * 32] * 33},
        ):
            assert client.post("/v1/peers", json={**good, **wrong}).status_code == 422, wrong
        assert client.post("/v1/peers", json={**good, "more": "x" * 70_000}).status_code == 413


def test_nobody_takes_back_what_was_offered_with_another_token(network: Publisher) -> None:
    pack = network.publish("theirs/bert", seed=1)
    announce(network, "theirs/bert", pack, "127.77.0.1")
    created = httpx.post(
        f"{network.served.url}/v1/tokens",
        json={"label": "other", "role": "read", "namespace": "theirs"},
        headers={"Authorization": f"Bearer {network.served.token}"},
    ).json()
    [before] = sources(network, "theirs", pack.pack).sources
    with Remote(network.served.url, created["secret"]) as remote:
        request = PeersRequest(Namespace("theirs"), before.peer, "127.77.0.2", withdrawn=(Digest(pack.pack),))
        ask_peers(remote, request)
    assert sources(network, "theirs", pack.pack).sources == (before,)


def test_who_offers_in_the_place_of_an_honest_peer_does_not_have_it_left_alone(
    network: Publisher, tmp_path: Path
) -> None:
    pack, port = network.publish("framed/bert", seed=1), peer_port()
    with (
        peer_node(network, tmp_path / "honest", port, "framed/*") as honest,
        peer_node(network, tmp_path / "a", port, "framed/*") as node,
    ):
        honest.keeper.round()
        for _ in range(3):
            announce(network, "framed/bert", pack, honest.options.address)
        node.keeper.round()
        check_pack(node, pack)
        assert node.value("downloaded_bytes_total") == 0
