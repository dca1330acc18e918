"""Gives packs to other agents over HTTP, and nothing else: no listing, no other method, no other path."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from cachesvc_client.wire.errors import InvalidRequest

from ..measures import Measures
from .options import PeerOptions
from .shelf import Shelf

MAX_TRANSFERS = 4
"""Number of packs that are sent at the same time. Others are told to come again: an agent that has got the
pack meanwhile gives it to them."""
MAX_CONNECTIONS = 32
"""Number of connections at the same time; a further one is closed."""
TRANSFERS_OF_ONE = 2
"""Number of packs that are sent to one address at the same time: an agent gets one after the other."""
CONNECTIONS_OF_ONE = 8
"""Number of connections of one address at the same time."""
HEAD_SECONDS = 5.0
"""Seconds that a request may take to arrive."""
GRACE_SECONDS = 10.0
"""Seconds that any transfer may take, beside those for its bytes."""
LEAST_RATE = 512 << 10
"""Bytes in a second that a transfer must move on average."""
_MAX_HEAD_BYTES = 4096
"""Number of bytes of a request, at most."""
_CHUNK = 256 << 10
"""Number of bytes that are read and sent at once."""
_REQUEST = re.compile(rb"GET /v1/packs/([0-9a-f]{64})/([0-9a-f]{64}) HTTP/1\.[01]\r\n")
"""Matches the one request that is answered: a pack, and its capability."""
_RANGE = re.compile(rb"\r\nrange: *bytes=([0-9]{1,15})-([0-9]{1,15}) *\r\n", re.IGNORECASE)
"""Matches the one form of a range that is understood."""


@contextlib.contextmanager
def serve_packs(shelf: Shelf, options: PeerOptions, measures: Measures) -> Iterator[None]:
    """Gives the packs of a shelf for the length of the block, at the address that the options name. Raises
    ``InvalidRequest`` for one at which this process cannot listen."""
    try:
        server = _Server(shelf, options, measures)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(
            f"--peers {options.address}:{options.port}: {reason}", "name an address of this machine"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="cachesvc-node-peers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """Answers each connection once, on a thread of its own."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, shelf: Shelf, options: PeerOptions, measures: Measures) -> None:
        self.shelf, self.measures = shelf, measures
        self.transfers = _Shares(MAX_TRANSFERS, TRANSFERS_OF_ONE)
        self._connections = _Shares(MAX_CONNECTIONS, CONNECTIONS_OF_ONE)
        self.address_family = socket.AF_INET6 if ":" in options.address else socket.AF_INET
        super().__init__((options.address, options.port), _Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a connection, or closes it if there are too many."""
        if not self._connections.take(client_address[0]):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system has no room for a thread
            self._connections.give_back(client_address[0])
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection, on its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.give_back(client_address[0])

    def handle_error(self, *_: object) -> None:
        """Says nothing of a connection that breaks."""


class _Shares:
    """Counts what is under way, in all and for each address. Thread-safe."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """Return whether there is room for one more of an address, and count it then."""
        with self._lock:
            if self._taken.total() >= self._most or self._taken[address] >= self._most_of_one:
                return False
            self._taken[address] += 1
            return True

    def give_back(self, address: str) -> None:
        """Count one less of an address."""
        with self._lock:
            self._taken[address] -= 1
            self._taken += Counter()  # drops what is zero


class _Connection(socketserver.BaseRequestHandler):
    """Reads one request and answers it; each step has a bound in time."""

    server: _Server
    request: socket.socket

    def handle(self) -> None:
        """Answers the request; says nothing to who does not complete one in time."""
        head = _read_head(self.request)
        if head is None:
            return
        match = _REQUEST.match(head)
        file = self.server.shelf.open(match[1].decode(), match[2].decode()) if match else None
        if file is None:
            self._refuse("404 Not Found")
            return
        with file:
            self._answer(head, file)

    def _answer(self, head: bytes, file: BinaryIO) -> None:
        size = os.fstat(file.fileno()).st_size
        asked = _RANGE.search(head)
        begin, last = (int(asked[1]), int(asked[2])) if asked else (0, size - 1)
        if not begin <= last < size:
            self._refuse("416 Range Not Satisfiable")
        elif not self.server.transfers.take(self.client_address[0]):
            self._refuse("503 Service Unavailable")
        else:
            try:
                self._send(file, begin, last, size)
            finally:
                self.server.transfers.give_back(self.client_address[0])

    def _send(self, file: BinaryIO, begin: int, last: int, size: int) -> None:
        left = last + 1 - begin
        deadline = time.monotonic() + GRACE_SECONDS + left / LEAST_RATE
        self._write(
            f"HTTP/1.1 206 Partial Content\r\nContent-Type: application/octet-stream\r\n"
            f"Content-Range: bytes {begin}-{last}/{size}\r\nContent-Length: {left}\r\n"
            "Connection: close\r\n\r\n".encode(),
            deadline,
        )
        file.seek(begin)
        while left and (chunk := file.read(min(left, _CHUNK))):
            self._write(chunk, deadline)
            self.server.measures.add("peer_sent_bytes_total", len(chunk))
            left -= len(chunk)

    def _refuse(self, status: str) -> None:
        text = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        self._write(text.encode(), time.monotonic() + HEAD_SECONDS)

    def _write(self, data: bytes, deadline: float) -> None:
        """Sends bytes. Raises ``OSError`` when the time is over."""
        self.request.settimeout(max(0.001, deadline - time.monotonic()))
        self.request.sendall(data)


def _read_head(connection: socket.socket) -> bytes | None:
    """Returns the lines of a request; ``None`` if they are too long, or do not arrive in time."""
    head, deadline = b"", time.monotonic() + HEAD_SECONDS
    while not head.endswith(b"\r\n\r\n"):
        left = deadline - time.monotonic()
        if left <= 0 or len(head) > _MAX_HEAD_BYTES:
            return None
        connection.settimeout(left)
        try:
            data = connection.recv(_MAX_HEAD_BYTES)
        except OSError:
            return None
        if not data:
            return None
        head += data
    return head
