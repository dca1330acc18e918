"""Bound the connections of a server: how many, how long without a request, and how long without a reader."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr

from cachesvc.door.route import KNOWN
from cachesvc.door.sending import END

from .proxies import Proxies

RESERVED = 64
"""Descriptors that connections leave to the index, the store and the logs, at least."""
DOUBT_SECONDS = 1.0
"""Seconds that a request on a known client's connection may take to show a token again."""
READ_BYTES = 64 << 10
"""Bytes that are read from a connection at once: a request that waits has not many more in memory."""

SMALL_PARTS = 200
"""Parts of a body that may be of any size, such as chunks of a byte."""
PART_BYTES = 64
"""Bytes that the others have on average, else their connection is ended: each part costs as much as a small
request, and a chunk of a byte is six bytes of a network."""
WRITE_BYTES = 16 << 10
"""Bytes that a client has not read from which on the next piece of its answer waits."""


@dataclass
class Connections:
    """The connections of one server, and their bounds.

    ``most``: connections in all; ``per_address``: of one client's address. ``header_seconds``: from the
    beginning of a connection, or the end of an answer, until the next request's headers are complete.
    ``reader_seconds``: how long a client may not read an answer that waits for it.
    Strangers' connections are those on which nobody has shown a token, with or without a request under way:
    they take two thirds of all places, and those of one address a third, unless it is one of ``proxies``.
    Where there is no place for a new connection, the oldest one of a stranger is ended, of the address that
    has most of them; else the one of a known client that has waited longest without a request. One with a
    request under way of a known client is never ended for another.
    """

    most: int
    per_address: int
    header_seconds: float
    reader_seconds: float = 60.0
    proxies: Proxies = field(default_factory=lambda: Proxies(()))
    _strangers: _ByAddress = field(default_factory=lambda: _ByAddress())
    _waiting: _ByAddress = field(default_factory=lambda: _ByAddress())
    _open: Counter[str] = field(default_factory=Counter)

    def add(self, protocol: BoundedProtocol, address: str) -> bool:
        """Count a connection of ``address``, of a stranger until more is known; false if it has no place."""
        if self._open[address] >= self.per_address:
            has_place = self._end_one((address,))
        else:
            has_place = self._open.total() < self.most or self._end_one(self._open)
        if has_place:
            self._open[address] += 1
            self.doubt(protocol, address)
        return has_place

    def remove(self, protocol: BoundedProtocol, address: str) -> None:
        """End the count of a connection."""
        self._strangers.remove(protocol, address)
        self._waiting.remove(protocol, address)
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def doubt(self, protocol: BoundedProtocol, address: str) -> None:
        """Note that a connection is a stranger's: nobody knows yet who asks. The oldest makes room for it."""
        self._waiting.remove(protocol, address)
        self._strangers.add(protocol, address)
        if self._strangers.number(address) > max(1, self.most // 3) and not self.proxies.has(address):
            self._end_one((address,))
        elif self._strangers.total > max(1, 2 * self.most // 3):
            self._end_one(self._strangers.addresses)

    def know(self, protocol: BoundedProtocol, address: str) -> None:
        """Note that a token was shown on a connection: its request is never ended for another."""
        self._strangers.remove(protocol, address)

    def go_on(self, protocol: BoundedProtocol, address: str) -> None:
        """Note that a connection has a request under way."""
        self._waiting.remove(protocol, address)

    def wait(self, protocol: BoundedProtocol, address: str) -> None:
        """Note that a connection has no request under way. That of a stranger stays as old as it is."""
        if not self._strangers.has(protocol, address):
            self._waiting.add(protocol, address)

    def _end_one(self, addresses: Iterable[str]) -> bool:
        """End the connection that others need least, among those of ``addresses``."""
        for group in (self._strangers, self._waiting):
            oldest = group.oldest(addresses)
            if oldest is not None:
                oldest.end()
                return True
        return False


class _ByAddress:
    """Connections by address, the oldest of each first."""

    def __init__(self) -> None:
        self.addresses: dict[str, dict[BoundedProtocol, None]] = {}
        self.total = 0

    def has(self, protocol: BoundedProtocol, address: str) -> bool:
        return protocol in self.addresses.get(address, ())

    def number(self, address: str) -> int:
        return len(self.addresses.get(address, ()))

    def add(self, protocol: BoundedProtocol, address: str) -> None:
        if not self.has(protocol, address):
            self.addresses.setdefault(address, {})[protocol] = None
            self.total += 1

    def remove(self, protocol: BoundedProtocol, address: str) -> None:
        if not self.has(protocol, address):
            return
        del self.addresses[address][protocol]
        self.total -= 1
        if not self.addresses[address]:
            del self.addresses[address]

    def oldest(self, addresses: Iterable[str]) -> BoundedProtocol | None:
        """Return the oldest connection of the address that has most; ``None`` if none has any."""
        most = max(addresses, key=self.number, default="")
        return next(iter(self.addresses.get(most, ())), None)


def affordable(most: int) -> int:
    """Returns ``most``, or the connections for which this process has descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, descriptors - max(RESERVED, descriptors // 4)))


class BoundedProtocol(H11Protocol):
    """HTTP over one connection, which ends if its client is too slow to ask or to read."""

    bounds: Connections
    """The connections of the server; set in a subclass of each server."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._address: str | None = None
        self._encrypted: asyncio.Transport | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._doubt_timer: asyncio.TimerHandle | None = None
        self._next_event, self.conn.next_event = self.conn.next_event, self._event  # type: ignore[method-assign]
        self._parts, self._bytes = 0, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        with suppress(AttributeError):  # asyncio's own transports have it
            transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        transport.set_write_buffer_limits(WRITE_BYTES)
        if self._encrypted is None:
            self._enter()
        elif self._address is None:  # it was ended while its handshake did
            self.end()

    def handshake_begun(self, transport: Any) -> None:
        """Count a connection, and its time until the first request's headers, before it has spoken TLS."""
        self._encrypted = transport
        self.client = get_remote_addr(transport)
        self._enter()

    def handshake_lost(self) -> None:
        """End the count of a connection that was lost in its handshake."""
        if self.transport is None:
            self._stop_waiting()
            self._leave()

    def _enter(self) -> None:
        address = self.client[0] if self.client else ""
        self._address = address
        if not self.bounds.add(self, address):
            self._address = None
            self.end()
            return
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop(self._reader_timer)
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._has_request():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._has_request():
            self._stop(self._doubt_timer)
            self._wait_for_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop(self._reader_timer)
        self._reader_timer = self.loop.call_later(self.bounds.reader_seconds, self.end)

    def resume_writing(self) -> None:
        self._stop(self._reader_timer)
        super().resume_writing()

    def end(self) -> None:
        """Ends the connection at once; its place is free before the loop tells that it was lost."""
        self._stop_waiting()
        self._leave()
        (self._encrypted or self.transport).abort()

    def handle_events(self) -> None:
        earlier = self.cycle
        super().handle_events()
        if self.cycle is not earlier and self._address is not None:
            self.cycle.scope[KNOWN] = self._know  # type: ignore[literal-required] # before its task begins
            self.cycle.scope[END] = self.end  # type: ignore[literal-required]
            self.bounds.go_on(self, self._address)
            self._stop(self._doubt_timer)
            self._doubt_timer = self.loop.call_later(DOUBT_SECONDS, self._doubt)

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # an answer has begun, or was sent: the exception would be in the log
            self.end()

    def _event(self) -> Any:
        """Return the next event of the connection, which is ended for too many small parts of a body."""
        event = self._next_event()
        if isinstance(event, h11.Request):
            self._parts, self._bytes = 0, 0
        elif isinstance(event, h11.Data):
            self._parts += 1
            self._bytes += len(event.data)
            if self._bytes < (self._parts - SMALL_PARTS) * PART_BYTES:
                self.end()
                return h11.NEED_DATA
        return event

    def _know(self) -> None:
        self._stop(self._doubt_timer)
        if self._address is not None:
            self.bounds.know(self, self._address)

    def _doubt(self) -> None:
        if self._address is not None:
            self.bounds.doubt(self, self._address)

    def _leave(self) -> None:
        self._stop(self._doubt_timer)
        if self._address is not None:
            self.bounds.remove(self, self._address)
            self._address = None

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_request(self) -> None:
        if self._address is None or self._header_timer is not None:
            return
        self.bounds.wait(self, self._address)
        self._header_timer = self.loop.call_later(self.bounds.header_seconds, self.end)

    def _stop_waiting(self) -> None:
        self._stop(self._header_timer)
        self._header_timer = None

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def protocol_class(bounds: Connections) -> type[BoundedProtocol]:
    """Returns the protocol of a server whose connections have these bounds."""
    return type("ServerProtocol", (BoundedProtocol,), {"bounds": bounds})
