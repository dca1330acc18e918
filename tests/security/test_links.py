"""A hostile registry names an address of the node itself, of its network or of plain HTTP as the place of a
pack: no request goes there, and the registry itself has to give the pack."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from cachesvc_client.http.origin import parse_networks
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Untrusted
from cachesvc_client.wire.manifest.records import PackRecord
from cachesvc_client.wire.requests.protocol import ResolvedRevision
from tests.http.hostile_servers import DATA, DIGEST, Request, Server, answer, ranged, serve

REGISTRY = "http://registry.example"
"""A registry that is elsewhere: a proxy of the tests answers for it."""
NAMES = ("2130706433", "0x7f.1")
"""Numbers that the system's look-up of names makes 127.0.0.1 of."""


@pytest.fixture
def victim() -> Iterator[Server]:
    """What listens on loopback of the node, for the node alone."""
    with serve(ranged) as server:
        yield server


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Starts the proxy, with these answers of the registry; loopback is reached without it."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with serve(lambda sock, request: handler(sock, request)) as proxy:
        handler = ranged

        def begin(respond: Callable[[socket.socket, Request], bool | None] = ranged) -> Server:
            nonlocal handler
            handler = respond
            return proxy

        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", ",".join(("127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", *NAMES)))
        yield begin


def resolved(link: str) -> ResolvedRevision:
    return ResolvedRevision(DIGEST, Digest.of(b"revision"), "", DIGEST, len(DATA), link)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", *NAMES])
def test_a_hostile_registry_sends_no_client_to_the_node_itself(
    elsewhere: Callable[..., Server], victim: Server, host: str
) -> None:
    proxy = elsewhere()
    with Remote(REGISTRY) as remote:
        link = f"http://{host}:{victim.port}/admin?delete=all"
        assert b"".join(remote.downloads.fetch(resolved(link), PackRecord(DIGEST, len(DATA)))) == DATA
    assert victim.connections == 0 and victim.requests == []
    assert [request.path.startswith(f"{REGISTRY}/v1/revisions/") for request in proxy.requests] == [True]


def test_a_hostile_registry_redirects_no_client_to_the_node_itself(
    elsewhere: Callable[..., Server], victim: Server
) -> None:
    elsewhere(lambda sock, _: answer(sock, None, 307, Location=victim.url + "/admin"))
    with Remote(REGISTRY) as remote, pytest.raises(Untrusted, match=r"the loopback address 127\.0\.0\.1"):
        b"".join(remote.downloads.download("/v1/revisions/r/pack", 0, len(DATA)))
    assert victim.connections == 0


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("169.254.169.254", "link-local"),
        ("168.63.129.16", "link-local"),
        ("10.1.2.3", "private"),
        ("[fd00::1]", "private"),
        ("[fe80::1]", "link-local"),
        ("[64:ff9b:1::a9fe:a9fe]", "private"),
        ("[::a9fe:a9fe]", "private"),
        ("[fec0::1]", "private"),
        ("224.0.0.1", "private"),
    ],
)
def test_a_hostile_registry_reaches_no_metadata_service_through_a_proxy(
    elsewhere: Callable[..., Server], host: str, kind: str
) -> None:
    proxy = elsewhere()
    with Remote(REGISTRY) as remote, pytest.raises(Untrusted, match=f"the {kind} address"):
        b"".join(remote.downloads.download(f"http://{host}/latest/meta-data", 0, len(DATA)))
    assert proxy.requests == []


def test_a_registry_on_the_node_links_to_the_node_and_to_no_other_network() -> None:
    with serve(ranged) as store, serve(ranged) as server, Remote(server.url, "secret") as remote:
        assert b"".join(remote.downloads.download(store.url + "/pack", 0, len(DATA))) == DATA
        for host, kind in (("169.254.169.254", "link-local"), ("10.1.2.3", "private")):
            with pytest.raises(Untrusted, match=f"the {kind} address {host}"):
                b"".join(remote.downloads.download(f"http://{host}/pack", 0, len(DATA)))
    assert "authorization" not in store.requests[0].headers


def test_whoever_runs_the_node_permits_a_network_and_the_token_stays(
    elsewhere: Callable[..., Server], victim: Server
) -> None:
    elsewhere()
    with Remote(REGISTRY, allow_links=parse_networks("10.0.0.0/8, 127.0.0.1")) as remote:
        assert b"".join(remote.downloads.download(victim.url + "/pack", 0, len(DATA))) == DATA
    [request] = victim.requests
    assert "authorization" not in request.headers


def test_a_hostile_registry_takes_no_client_from_https_to_http(victim: Server) -> None:
    with (
        Remote("https://127.0.0.1:9", "secret") as remote,
        pytest.raises(Untrusted, match=r"links from https to http://127\.0\.0\.1"),
    ):
        b"".join(remote.downloads.download(victim.url + "/pack", 0, len(DATA)))
    assert victim.connections == 0
