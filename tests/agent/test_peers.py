"""Test that agents of one network give each other packs, with a real registry and real agents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cachesvc.agent.measures import Measures
from cachesvc.agent.peers import peers as peers_module
from cachesvc.agent.peers.patience import Patience
from cachesvc_client.wire.digest import Digest
from tests.e2e.registries import SETTLED_SECONDS

from .conftest import Node, Publisher
from .peer_nodes import announce, new_address, peer_node, peer_port, sources

FRAMES = 10_000_000
"""Bytes of a pack of three frames."""


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have agents wait one second for peers that bring nothing."""
    monkeypatch.setattr(Patience, "of", lambda _sizes: Patience(1.0, 60.0))


def test_an_agent_gets_a_pack_from_another_one_and_none_of_its_bytes_from_the_registry(
    network: Publisher, tmp_path: Path
) -> None:
    pack, port = network.publish("two/bert", seed=1, size=FRAMES), peer_port()
    with (
        peer_node(network, tmp_path / "a", port, "two/*") as first,
        peer_node(network, tmp_path / "b", port, "two/*") as second,
    ):
        first.keeper.round()
        second.keeper.round()
        assert first.packs() == second.packs() == {pack.pack}
        size = (second.root / "v1" / "packs" / pack.pack[7:]).stat().st_size
        assert first.value("downloaded_bytes_total") == size
        assert second.value("downloaded_bytes_total") == 0
        assert second.value("peer_received_bytes_total") == first.value("peer_sent_bytes_total") == size
    path = second.root / "v1" / "packs" / pack.pack[7:]
    assert Digest.of(path.read_bytes()) == pack.pack
    assert path.stat().st_mode & 0o777 == 0o644


def test_of_many_agents_that_start_at_once_few_ask_the_registry(network: Publisher, tmp_path: Path) -> None:
    packs = {network.publish(f"many/m{number}", seed=number, size=2_000_000).pack for number in range(3)}
    port, errors = peer_port(), []

    def start(keeper) -> None:
        try:
            keeper.round()
        except BaseException as error:  # noqa: BLE001 -- the test fails with it
            errors.append(error)

    with ExitStack() as stack:
        nodes = [
            stack.enter_context(peer_node(network, tmp_path / str(number), port, "many/*"))
            for number in range(12)
        ]
        threads = [threading.Thread(target=start, args=(node.keeper,)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert all(node.packs() == packs for node in nodes)
    fetched = sum(node.value("downloaded_bytes_total") for node in nodes)
    received = sum(node.value("peer_received_bytes_total") for node in nodes)
    assert fetched + received >= 12 * 6_000_000
    assert fetched < 0.5 * (fetched + received)


def test_a_registry_that_does_not_help_is_asked_for_the_packs(publisher: Publisher, tmp_path: Path) -> None:
    pack = publisher.publish("off/bert", seed=1)
    with peer_node(publisher, tmp_path / "a", peer_port(), "off/*") as node:
        node.keeper.round()
        assert node.packs() == {pack.pack}
        assert node.value("downloaded_bytes_total") > 0


@pytest.mark.usefixtures("short_patience")
def test_where_no_peer_answers_the_registry_gives_the_pack(network: Publisher, tmp_path: Path) -> None:
    pack = network.publish("gone/bert", seed=1)
    for _ in range(6):
        announce(network, "gone/bert", pack, new_address())
    with peer_node(network, tmp_path / "a", peer_port(), "gone/*") as node:
        node.keeper.round()
        assert node.packs() == {pack.pack}
        assert node.value("peer_received_bytes_total") == 0
        assert node.value("peer_failures_total", "gone") > 0


def test_who_waited_in_vain_leaves_peers_alone_for_a_while(
    network: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two agents hold the permission to fetch and do not fetch: nobody else gets one."""
    monkeypatch.setattr(Patience, "of", lambda _sizes: Patience(0.5, 60.0))
    pack = network.publish("vain/bert", seed=1)
    assert [sources(network, "vain", pack.pack).fetch for _ in range(3)] == [True, True, False]
    with peer_node(network, tmp_path / "a", peer_port(), "vain/*") as node:
        node.keeper.round()
        assert node.packs() == {pack.pack}
        assert node.peers._avoided.all_until > time.monotonic() + peers_module.AVOIDED_SECONDS - 60


def test_a_pack_of_an_earlier_run_is_offered_only_if_it_is_whole(network: Publisher, tmp_path: Path) -> None:
    pack, port = network.publish("earlier/bert", seed=1), peer_port()
    for number, expected in enumerate((1, 0)):
        root = tmp_path / str(number)
        Node(root, network.config, Measures()).round("earlier/*")
        path = root / "v1" / "packs" / pack.pack[7:]
        if not expected:
            path.write_bytes(bytes(path.stat().st_size))
        with peer_node(network, root, port, "earlier/*") as node:
            node.keeper.round()
            addresses = [row.address for row in sources(network, "earlier", pack.pack).sources]
            assert addresses.count(node.options.address) == expected


def test_a_pack_that_is_removed_is_withdrawn(network: Publisher, tmp_path: Path) -> None:
    old = network.publish("removed/bert", seed=1)
    with peer_node(network, tmp_path / "a", peer_port(), "removed/*") as node:
        node.keeper.round()
        [source] = sources(network, "removed", old.pack).sources
        assert source.address == node.options.address
        new = network.publish("removed/bert", seed=2)
        node.keeper.round()
        assert node.packs() == {new.pack}
        assert sources(network, "removed", old.pack).sources == ()
        assert [row.address for row in sources(network, "removed", new.pack).sources] == [source.address]


def test_the_command_serves_and_asks_as_it_is_told(network: Publisher, tmp_path: Path) -> None:
    pack, port = network.publish("command/bert", seed=1, size=FRAMES), peer_port()
    with peer_node(network, tmp_path / "here", port, "command/*") as node:
        node.keeper.round()
        words = ["node", "command/*", "--store", str(tmp_path / "there"), "--listen", "127.0.0.1:0"]
        words += ["--peers", f"{new_address()}:{port}", "--peer-networks", "127.77.0.0/16"]
        environment = {**os.environ, **network.served.variables}
        process = subprocess.Popen(
            [sys.executable, "-m", "cachesvc", *words],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until = time.monotonic() + SETTLED_SECONDS
            path = tmp_path / "there" / "v1" / "packs" / pack.pack[7:]
            while not path.exists() and time.monotonic() < until:
                time.sleep(0.1)
            assert Digest.of(path.read_bytes()) == pack.pack
            assert node.value("peer_sent_bytes_total") == path.stat().st_size
        finally:
            process.send_signal(signal.SIGTERM)
            errors = process.communicate(timeout=SETTLED_SECONDS)[1]
    assert process.returncode == 0, errors
    assert "packs are given to agents of 127.77.0.0/16" in errors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--peers", "127.77.0.9:8752"], "--peers, --peer-networks: one is set without the other"),
        (["--peer-networks", "10.0.0.0/8"], "--peers, --peer-networks: one is set without the other"),
        (["--peers", "10.0.0.1", "--peer-networks", "10.0.0.0/8"], "allowed: HOST:PORT"),
        (["--peers", "10.0.0.1:0", "--peer-networks", "10.0.0.0/8"], "port: 1 to 65535"),
        (["--peers", "10.0.0.1:1", "--peer-networks", "ten"], "allowed: addresses and networks"),
        (["--peers", "0.0.0.0:8752", "--peer-networks", "0.0.0.0/0"], "in none of the networks"),
        (["--peers", "127.0.0.1:8752", "--peer-networks", "0.0.0.0/0"], "in none of the networks"),
        (["--peers", "localhost:8752", "--peer-networks", "127.0.0.0/8"], "in none of the networks"),
        (["--peers", "127.0.0.1:8752", "--peer-networks", "127.0.0.0/8", "--once"], "--once"),
    ],
)
def test_words_that_mean_nothing_are_refused_with_a_line(
    network: Publisher, tmp_path: Path, words: list[str], expected: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "cachesvc",
        "node",
        "team/*",
        "--store",
        str(tmp_path / "s"),
        *words,
    ]
    ended = subprocess.run(
        command, env={**os.environ, **network.served.variables}, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr
