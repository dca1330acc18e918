"""Test a registry whose name has several addresses, some of which do not answer.

The silent addresses are sockets of this machine with a full queue, so that connecting to them hangs."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from hostile_servers import INFO, answer, serve

from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import Unavailable

NAME = "registry.test"


@contextlib.contextmanager
def silent_port(port: int, *addresses: str) -> Iterator[None]:
    """Fill the queue of a port of these addresses, so that the port accepts nobody and refuses nobody."""
    with contextlib.ExitStack() as stack:
        for address in addresses:
            listener = stack.enter_context(socket.socket())
            listener.bind((address, port))
            listener.listen(0)
            for _ in range(8):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex((address, port))
        probe = stack.enter_context(socket.socket())
        probe.settimeout(0.3)
        with pytest.raises(TimeoutError):
            probe.connect((addresses[0], port))
        yield


def resolve_name_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Make the name resolve to these addresses, in this order: tests have no name server."""
    real = socket.getaddrinfo

    def getaddrinfo(host, port, *arguments, **more):
        if host != NAME:
            return real(host, port, *arguments, **more)
        return [row for address in addresses for row in real(address, port, *arguments, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_all_addresses_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    addresses = [f"127.0.0.{number}" for number in range(2, 14)]
    resolve_name_to(monkeypatch, *addresses)
    with silent_port(port, *addresses):
        began = time.monotonic()
        with pytest.raises(Unavailable, match="in time"):
            Remote(f"http://{NAME}:{port}").info(deadline=began + 1)
        assert time.monotonic() - began < 6  # A second for each of the twelve addresses would be more.


def test_a_silent_address_does_not_delay_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(lambda sock, _: answer(sock, INFO)) as server, silent_port(server.port, "127.0.0.2"):
        resolve_name_to(monkeypatch, "127.0.0.2", "127.0.0.1")
        remote = Remote(f"http://{NAME}:{server.port}", connect_timeout=60, retries=0)
        assert remote.info(deadline=time.monotonic() + 8).api == 1


def test_an_address_that_refuses_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(lambda sock, _: answer(sock, INFO)) as server:
        resolve_name_to(monkeypatch, "127.0.0.2", "::1", "127.0.0.1")
        assert Remote(f"http://{NAME}:{server.port}", retries=0).info().api == 1


def test_the_last_refusal_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    resolve_name_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    with pytest.raises(Unavailable, match="refused"):
        Remote(f"http://{NAME}:{port}", retries=0).info()
