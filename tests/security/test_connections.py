"""What somebody without a token gains by connections on which nothing is asked: nothing but their own."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_making import Server, ok

from tests.services.certificate import certificate

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


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["silent", "half-way"])
def test_tls_handshakes_that_do_not_end_keep_nobody_out(tmp_path: Path, begun: bytes) -> None:
    """They are connections like others, though no request can have come: counted, and ended in their time."""
    chain, key = certificate(tmp_path)
    registry = Server(
        tmp_path / "data",
        env={
            "CACHESVC_SERVER_HEADER_SECONDS": "5",
            "CACHESVC_SERVER_TLS_CERTIFICATE": str(chain),
            "CACHESVC_SERVER_TLS_KEY": str(key),
        },
        before=["bash", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "bash"],
    ).start()
    host, port = registry.url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(chain))

    def asked() -> bytes:
        line = socket.create_connection((host, int(port)), timeout=30)
        with context.wrap_socket(line, server_hostname=host) as encrypted:
            encrypted.sendall(b"GET /healthz HTTP/1.1\r\nHost: registry\r\nConnection: close\r\n\r\n")
            return encrypted.recv(12)

    held = [socket.create_connection((host, int(port)), timeout=30) for _ in range(2 * DESCRIPTORS)]
    for line in held:
        try:
            line.sendall(begun)
        except OSError:  # closed to make room
            continue
    began = time.monotonic()
    assert asked() == b"HTTP/1.1 200"
    for line in held:  # each is closed, the last ones after their time for a request
        try:
            assert line.recv(100) == b""
        except ConnectionError:
            continue
    print(f"ended after {time.monotonic() - began:.0f} s")
    assert asked() == b"HTTP/1.1 200"
    assert registry.stop() == 0
