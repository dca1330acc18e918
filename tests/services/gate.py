"""A way to a server that a test can close, as an outage does: connections break, and new ones are refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Gate:
    """TCP to ``host:port``, open at first."""

    def __init__(self, host: str, port: int) -> None:
        self._there = (host, port)
        self._held: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.port = 0
        self.open()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self) -> None:
        """On the port that it had."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Ends what passes, and listens no more."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for held in self._held:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
        self._held.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = listener.accept()[0]
                server = socket.create_connection(self._there)
                self._held += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def gate(address: str) -> Iterator[Gate]:
    """To ``host:port``."""
    host, _, port = address.rpartition(":")
    made = Gate(host, int(port))
    try:
        yield made
    finally:
        made.close()
