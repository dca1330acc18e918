"""A TCP connection to a host that may have several addresses, of which some may not answer."""

from __future__ import annotations

import errno
import itertools
import os
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

NEXT_ADDRESS = 0.25
"""Seconds that one address is tried alone, before the next one is tried beside it (RFC 8305, section 8)."""


def open_socket(host: str, port: int, seconds: float) -> socket.socket:
    """Connects to the address of the host that answers first, within ``seconds`` in all, however many
    addresses it has. IPv6 and IPv4 take turns, beginning with what the system prefers, and an address that
    fails or is silent holds up the next one by ``NEXT_ADDRESS`` seconds at most. To look up the name is not
    counted, and cannot be interrupted.

    Raises ``TimeoutError``, ``socket.gaierror``, or the ``OSError`` of the last address that failed.
    """
    waiting = _in_turns(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    until = time.monotonic() + seconds
    failed: OSError = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    with selectors.DefaultSelector() as trying, ExitStack() as opened:
        address = next(waiting, None)
        while address is not None or trying.get_map():
            if address is not None:
                try:
                    trying.register(_begun(address, opened), selectors.EVENT_WRITE)
                except OSError as error:
                    failed = error
                address = next(waiting, None)
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no address answered in time")
            if not trying.get_map():
                continue
            for key, _ in trying.select(left if address is None else min(left, NEXT_ADDRESS)):
                sock: Any = key.fileobj
                number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not number:
                    return _kept(sock)
                trying.unregister(sock)
                failed = OSError(number, os.strerror(number))
        raise failed


def _begun(address: tuple[Any, ...], opened: ExitStack) -> socket.socket:
    """Starts to connect. The socket is closed with ``opened``."""
    family, kind, protocol, _, there = address
    sock = opened.enter_context(socket.socket(family, kind, protocol))
    sock.setblocking(False)
    number = sock.connect_ex(there)
    if number not in (0, errno.EINPROGRESS):
        raise OSError(number, os.strerror(number))
    return sock


def _kept(sock: socket.socket) -> socket.socket:
    """Moves the connection into a socket that ``opened`` does not close."""
    kept = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
    kept.setblocking(True)
    return kept


def _in_turns(found: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Alternates between the address families, each in the system's order."""
    first = [row for row in found if row[0] == found[0][0]]
    other = [row for row in found if row[0] != found[0][0]]
    for pair in itertools.zip_longest(first, other):
        yield from (row for row in pair if row is not None)
