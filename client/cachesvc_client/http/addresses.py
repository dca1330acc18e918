"""Opens a TCP connection to a host that may have several addresses, some of which may not answer."""

from __future__ import annotations

import errno
import itertools
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

NEXT_ADDRESS_SECONDS = 0.25
"""Seconds that one address is tried alone, before the next one is tried beside it (RFC 8305, section 8)."""


Choose = Callable[[list[tuple[Any, ...]]], list[tuple[Any, ...]]]
"""Takes rows of ``getaddrinfo`` and returns those to which a connection may be made."""


def open_socket(
    host: str, port: int, seconds: float, choose: Choose = lambda addresses: addresses
) -> socket.socket:
    """Connects to the address of the host that answers first, within ``seconds`` in all, however many
    addresses it has. IPv6 and IPv4 alternate, beginning with the family that the system prefers. An address
    that fails or is silent delays the next one by ``NEXT_ADDRESS_SECONDS`` at most. The look-up of the name
    is not counted, and cannot be interrupted. ``choose``: which addresses may be used; between its answer and
    the connection no name is looked up again.

    Raises what ``choose`` raises, ``TimeoutError``, ``socket.gaierror``, or the ``OSError`` of the last
    address that failed.
    """
    addresses = _alternate_families(choose(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
    until = time.monotonic() + seconds
    failure: OSError = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    with selectors.DefaultSelector() as selector, ExitStack() as sockets:
        address = next(addresses, None)
        while address is not None or selector.get_map():
            if address is not None:
                try:
                    selector.register(_start_connect(address, sockets), selectors.EVENT_WRITE)
                except OSError as error:
                    failure = error
                address = next(addresses, None)
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no address answered in time")
            if not selector.get_map():
                continue
            for key, _ in selector.select(left if address is None else min(left, NEXT_ADDRESS_SECONDS)):
                sock: Any = key.fileobj
                number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not number:
                    return _detach(sock)
                selector.unregister(sock)
                failure = OSError(number, os.strerror(number))
        raise failure


def _start_connect(address: tuple[Any, ...], sockets: ExitStack) -> socket.socket:
    """Starts to connect to an address. ``sockets`` closes the socket."""
    family, socket_type, protocol, _, destination = address
    sock = sockets.enter_context(socket.socket(family, socket_type, protocol))
    sock.setblocking(False)
    number = sock.connect_ex(destination)
    if number not in (0, errno.EINPROGRESS):
        raise OSError(number, os.strerror(number))
    return sock


def _detach(sock: socket.socket) -> socket.socket:
    """Moves the connection into a socket that ``sockets`` does not close."""
    detached = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
    detached.setblocking(True)
    return detached


def _alternate_families(addresses: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Alternates between the address families, each in the system's order."""
    first = [row for row in addresses if row[0] == addresses[0][0]]
    other = [row for row in addresses if row[0] != addresses[0][0]]
    for pair in itertools.zip_longest(first, other):
        yield from (row for row in pair if row is not None)
