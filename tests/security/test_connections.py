"""What somebody without a token gains by connections on which nothing is asked: nothing but their own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_making import Server, ok

DESCRIPTORS = 256
"""Open files that the server may have."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    registry = Server(
        tmp_path / "data",
        env={"CACHESVC_SERVER_HEADER_SECONDS": "5"},
        before=["bash", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "bash"],
    ).start()
    yield registry
    assert registry.stop() == 0


def test_half_open_requests_without_a_token_keep_nobody_out(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    sockets = [socket.create_connection((host, int(port)), timeout=30) for _ in range(DESCRIPTORS)]
    for half_open in sockets:
        try:
            half_open.sendall(b"POST /v1/resolve HTTP/1.1\r\nHost: registry\r\n")
        except OSError:  # closed to make room
            continue
    assert ok(server.api().http.get("/v1/whoami"))["role"] == "admin"
    for half_open in sockets:  # each is closed, the last ones after their time for headers
        try:
            assert half_open.recv(100) == b""
        except ConnectionError:
            continue
    assert ok(server.api().http.get("/v1/whoami"))["role"] == "admin"
