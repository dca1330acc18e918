"""What somebody without a token gains by connections on which nothing is asked: nothing but their own."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
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


@pytest.mark.parametrize("path", ["/v1/oidc/token", "/v1/resolve", "/v1/uploads/u/pack", "/nothing"])
def test_a_body_of_chunks_of_a_byte_costs_its_sender_the_connection(server: Server, path: str) -> None:
    """All that came at once was parsed before anybody else had a turn, 0.06 s for each such connection: eight
    of them had each request of others wait for 1.3 s, and up to 5.5 s."""
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    for number, is_ended in ((150, False), (20_000, True)):
        answer = b""
        with socket.create_connection((host, int(port)), timeout=30) as line, suppress(ConnectionError):
            line.sendall(head + b"1\r\nx\r\n" * number + b"0\r\n\r\n")
            answer = line.recv(4096)
        assert (answer == b"") is is_ended, answer
    assert ok(server.api().http.get("/v1/whoami"))["role"] == "admin"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"POST /v1/oidc/token HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\n",
        b"POST /v1/oidc/token HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{",
        b"POST /v1/resolve HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n|none\r\n",
        b"POST /v1/resolve HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}|none\r\n\r\n",
        b"POST /v1/oidc/token HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n|none\r\n\r\n",
        b"HEAD /v1/info HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\nGET / HTTP/1.1\r\n|none\r\n\r\n",
    ],
    ids=[
        *("tls", "no host", "two hosts", "upgrade", "no chunk", "cut"),
        *("after the answer", "behind the body", "trailer", "pipelined"),
    ],
)
def test_requests_that_are_none_write_no_line_each_into_the_log(tmp_path: Path, sent: bytes) -> None:
    """Who has no token fills no disk with what an operator reads."""
    server = Server(tmp_path / "data").start()
    host, port = server.url.removeprefix("http://").split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=30) as line:
            first, _, then = sent.partition(b"|")
            with suppress(ConnectionError):
                line.sendall(first)
                if then:
                    time.sleep(0.05)
                    line.sendall(then)
                line.shutdown(socket.SHUT_WR)
                while line.recv(4096):
                    pass
    lines = server.end()
    assert len(lines) < 10, lines[-5:]


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00" * 9])
def test_handshakes_that_are_none_write_no_line_each_into_the_log(tmp_path: Path, sent: bytes) -> None:
    chain, key = certificate(tmp_path)
    tls = {"CACHESVC_SERVER_TLS_CERTIFICATE": str(chain), "CACHESVC_SERVER_TLS_KEY": str(key)}
    server = Server(tmp_path / "data", env=tls).start()
    host, port = server.url.removeprefix("https://").split(":")
    for _ in range(40):
        with socket.create_connection((host, int(port)), timeout=30) as line:
            line.sendall(sent)
            try:
                while line.recv(4096):
                    pass
            except ConnectionError:
                continue
    lines = server.end()
    assert len(lines) < 10, lines[-5:]
