"""Bound the connections of a server: how many, how long without a request, and how long without a reader."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

RESERVED = 64
"""Descriptors that connections leave to the index, the store and the logs, at least."""


@dataclass
class Connections:
    """The connections of one server, and their bounds.

    ``most``: connections in all; ``per_address``: of one client's address. ``header_seconds``: from the
    beginning of a connection, or the end of an answer, until the next request's headers are complete.
    ``reader_seconds``: how long a client may not read an answer that waits for it.
    Where all places are taken, the address that has most loses the connection that has waited longest without
    a request, so that a new connection gets a place. One with a request under way is never ended for another.
    """

    most: int
    per_address: int
    header_seconds: float
    reader_seconds: float = 60.0
    _waiting: dict[str, dict[BoundedProtocol, None]] = field(default_factory=dict)
    _open: dict[str, int] = field(default_factory=dict)

    def add(self, address: str) -> bool:
        """Counts a connection of ``address``; false if it has no place."""
        full = None
        if self._open.get(address, 0) >= self.per_address:
            full = address
        elif sum(self._open.values()) >= self.most:
            full = max(self._open, key=lambda each: self._open[each])
        if full is not None:
            longest = next(iter(self._waiting.get(full, ())), None)
            if longest is None:
                return False
            longest.end()
        self._open[address] = self._open.get(address, 0) + 1
        return True

    def remove(self, address: str) -> None:
        """Ends the count of a connection."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def wait(self, protocol: BoundedProtocol, address: str) -> None:
        """Notes that a connection has no request under way."""
        self._waiting.setdefault(address, {})[protocol] = None

    def go_on(self, protocol: BoundedProtocol, address: str) -> None:
        """Notes that a connection has a request under way, or has ended."""
        waiting = self._waiting.get(address, {})
        waiting.pop(protocol, None)
        if not waiting:
            self._waiting.pop(address, None)


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
        self._header_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self.bounds.add(address):
            self.end()
            return
        self._address = address
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop(self._reader_timer)
        if self._address is not None:
            self.bounds.remove(self._address)
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._has_request():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._has_request():
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
        if self._address is not None:
            self.bounds.remove(self._address)
            self._address = None
        self.transport.abort()

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
        if self._address is not None:
            self.bounds.go_on(self, self._address)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def protocol_class(bounds: Connections) -> type[BoundedProtocol]:
    """Returns the protocol of a server whose connections have these bounds."""
    return type("ServerProtocol", (BoundedProtocol,), {"bounds": bounds})
