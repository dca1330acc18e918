"""Relay TCP between a client and a server; a test closes, holds or watches the connection. Neither side is
replaced."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

CHUNK = 1 << 16
"""The largest number of bytes that the relay passes on at once."""


class Relay:
    """Passes TCP on to the server at ``target``, ``host:port``, from a port that stays the same: a free
    one of loopback, or ``port`` of ``host``.

    ``hold``: a request that contains these bytes is not passed on, and ``holds`` is set; its client waits
    until it ends the connection itself. ``requests``: the first lines of requests. ``sent``: the number of
    bytes that went to clients. At ``limit`` bytes the relay calls ``at_limit`` and sends nothing more before
    it returns: it acts in the middle of an answer."""

    def __init__(self, target: str = "", host: str = "127.0.0.1", port: int = 0) -> None:
        self.target = target
        self.hold = b""
        self.holds = threading.Event()
        self.requests: list[bytes] = []
        self.sent = 0
        self.limit: int | None = None
        self.at_limit: Callable[[], None] = lambda: None
        self._sockets: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._host, self._port = host, port
        self.open()

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def open(self) -> None:
        """Listen on the port that the relay had before."""
        self._listener = socket.create_server((self._host, self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Break all connections and refuse new ones, as an outage does."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        with client, contextlib.suppress(OSError), socket.create_connection((host, int(port))) as server:
            self._sockets += [client, server]
            requests = threading.Thread(target=self._pass_requests, args=(client, server), daemon=True)
            requests.start()
            while chunk := server.recv(self._room()):
                client.sendall(chunk)
                self.sent += len(chunk)
                if self.limit is not None and self.sent >= self.limit:
                    self.limit = None
                    self.at_limit()
            if not self.holds.is_set():
                client.shutdown(socket.SHUT_WR)
            requests.join()

    def _room(self) -> int:
        return CHUNK if self.limit is None else max(1, min(CHUNK, self.limit - self.sent))

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := client.recv(CHUNK):
                self.requests.append(chunk.partition(b"\r\n")[0])
                if self.hold and self.hold in chunk:
                    self.holds.set()
                    client.recv(1)
                    break
                server.sendall(chunk)
            server.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relay(target: str = "") -> Iterator[Relay]:
    """Open a relay to ``host:port`` for the length of the block."""
    opened = Relay(target)
    try:
        yield opened
    finally:
        opened.close()
