"""Is an agent of a node that lies, for the tests and the benchmark: it listens as one, and gives no pack."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Behaviour = Literal["lies", "lies late", "drips", "redirects", "has nothing", "is silent"]


@dataclass
class HostilePeer:
    """Answers every request in one bad way. ``requests``: the heads that it got. ``truth``: bytes of the pack
    that it sends at first, where it lies late. ``location``: where it redirects to."""

    address: str
    port: int
    behaviour: Behaviour
    truth: bytes = b""
    location: str = ""
    requests: list[bytes] = field(default_factory=list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[HostilePeer]:
        """Listen for the length of the block."""
        with socket.create_server((self.address, self.port), backlog=128) as listener:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            try:
                yield self
            finally:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(60)
            head = b""
            while b"\r\n\r\n" not in head:
                data = connection.recv(4096)
                if not data:
                    return
                head += data
            self.requests.append(head)
            getattr(self, "_" + self.behaviour.replace(" ", "_"))(connection, head)

    def _lies(self, connection: socket.socket, head: bytes) -> None:
        begin, last = _range(head)
        connection.sendall(_partial(begin, last))
        left = last + 1 - begin
        while left:
            left -= connection.send(b"\xaa" * min(left, 1 << 16))

    def _lies_late(self, connection: socket.socket, head: bytes) -> None:
        begin, last = _range(head)
        truth = self.truth[begin:]
        connection.sendall(_partial(begin, last) + truth + bytes(last + 1 - begin - len(truth)))

    def _drips(self, connection: socket.socket, head: bytes) -> None:
        connection.sendall(_partial(*_range(head)))
        while True:
            connection.sendall(b"c")
            time.sleep(0.2)

    def _redirects(self, connection: socket.socket, _head: bytes) -> None:
        connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {self.location}\r\n\r\n".encode())

    def _has_nothing(self, connection: socket.socket, _head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _is_silent(self, connection: socket.socket, _head: bytes) -> None:
        while connection.recv(4096):
            pass


def _range(head: bytes) -> tuple[int, int]:
    match = re.search(rb"bytes=(\d+)-(\d+)", head)
    assert match, head
    return int(match[1]), int(match[2])


def _partial(begin: int, last: int) -> bytes:
    return (
        f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {begin}-{last}/{last + 1}\r\n"
        f"Content-Length: {last + 1 - begin}\r\n\r\n"
    ).encode()
