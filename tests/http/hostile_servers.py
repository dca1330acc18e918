"""Run real servers on loopback that hang, cut, lie, redirect and send too much."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cachesvc_client.wire.digest import Digest

DATA = bytes(range(256)) * 4096
"""The pack that the servers of the tests hold."""
DIGEST = Digest.of(DATA)


@dataclass
class Request:
    """Describes what one client sent. ``number`` counts all requests, from 0; ``connection`` counts the
    connections."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    number: int
    connection: int


Handler = Callable[[socket.socket, Request], "bool | None"]
"""Writes an answer; true keeps the connection."""


@dataclass
class Server:
    port: int
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serve(
    handler: Handler, *, body: bool = True, wrap: Callable[[socket.socket], socket.socket] | None = None
) -> Iterator[Server]:
    """Serve on loopback inside the block. ``body``: whether the server reads the bodies of requests before it
    calls the handler."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(listener.getsockname()[1])
    stop = threading.Event()
    open_sockets: list[socket.socket] = []

    def accept() -> None:
        while not stop.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            number, server.connections = server.connections, server.connections + 1
            open_sockets.append(sock)
            threading.Thread(target=converse, args=(sock, number), daemon=True).start()

    def converse(sock: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            if wrap is not None:
                sock = wrap(sock)
                open_sockets.append(sock)
            stream = sock.makefile("rb")
            try:
                while (request := _read(stream, server, number, body)) is not None and handler(sock, request):
                    pass
            finally:
                stream.close()
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for sock in open_sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _read(stream: Any, server: Server, connection: int, body: bool) -> Request | None:
    first = stream.readline().decode("latin-1").split()
    if len(first) != 3:
        return None
    headers = {}
    while (line := stream.readline().decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    data = stream.read(int(headers.get("content-length", 0))) if body else b""
    request = Request(first[0], first[1], headers, data, len(server.requests), connection)
    server.requests.append(request)
    return request


def answer(
    sock: socket.socket,
    value: object = None,
    status: int = 200,
    *,
    api: str | None = "1",
    raw: bytes | None = None,
    length: int | None = None,
    **headers: str,
) -> bool:
    """Write the answer of a registry, or a similar one. Header names have ``_`` for ``-``."""
    data = json.dumps(value).encode() if raw is None else raw
    lines = [f"HTTP/1.1 {status} Said"]
    lines.append(f"Content-Length: {len(data) if length is None else length}")
    if api is not None:
        lines.append(f"X-Cachesvc-Api: {api}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    sock.sendall("\r\n".join([*lines, "", ""]).encode() + data)
    return True


INFO = {"service": "cachesvc", "version": "0.1.0", "api": 1}


def ranged(
    sock: socket.socket, request: Request, data: bytes = DATA, most: int | None = None, **headers: str
) -> bool:
    """Make a file server that honours ranges. It sends at most ``most`` bytes and then cuts the
    connection."""
    start, status = 0, 200
    if "range" in request.headers:
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        start, status = int(first), 206
        headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
    part = data[start:]
    answer(sock, status=status, raw=part[:most], length=len(part), **headers)
    return most is None or most >= len(part)
