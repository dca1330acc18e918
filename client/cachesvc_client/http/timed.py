"""Applies one deadline to all of a call.

``http.client`` gives a timeout to each read, so that a peer that sends a byte now and then keeps a call for
ever; here each read and write gets the time that remains of the call.
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any

CHUNK = 1 << 20
"""Largest number of bytes that are read or sent at once."""


class Clock:
    """Measures the time that remains of a call. ``deadline``: a value of ``time.monotonic()``, or ``None``.
    ``stall``: seconds that one read or write may take in any case."""

    __slots__ = ("deadline", "stall")

    def __init__(self, deadline: float | None, stall: float) -> None:
        self.deadline = deadline
        self.stall = stall

    def left(self, most: float | None = None) -> float:
        """Returns the seconds for the next step, at most ``most``. Raises ``TimeoutError`` when the call is
        over."""
        left = self.stall if most is None else min(most, self.stall)
        if self.deadline is not None:
            left = min(left, self.deadline - time.monotonic())
        if left <= 0:
            raise TimeoutError("the deadline is over")
        return left


class TimedSocket:
    """Wraps a socket so that every read and write ends with its call. Has the methods that ``http.client``
    uses."""

    def __init__(self, inner: socket.socket, clock: Clock) -> None:
        self._inner = inner
        self.clock = clock

    def peer(self) -> Any:
        """Returns the address of the other side."""
        return self._inner.getpeername()

    def sendall(self, data: Any) -> None:
        """Sends all bytes, in pieces that each get the remaining time."""
        view = memoryview(data)
        while view:
            self._inner.settimeout(self.clock.left())
            view = view[self._inner.send(view[: CHUNK // 4]) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Returns a file that reads from the socket."""
        return io.BufferedReader(_TimedReader(self, self._inner.makefile("rb", buffering=0)), 1 << 16)

    def set_timeout(self) -> None:
        """Gives the next read the time that remains of the call."""
        self._inner.settimeout(self.clock.left())

    def close(self) -> None:
        """Closes the socket."""
        self._inner.close()


class _TimedReader(io.RawIOBase):
    """Sets the remaining time of the call before each read. Keeps the socket open, as the socket's own files
    do."""

    def __init__(self, sock: TimedSocket, raw: Any) -> None:
        self._socket = sock
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.set_timeout()
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
