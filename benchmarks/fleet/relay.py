"""Relay TCP to a registry's replicas, and delay, hold or break the connections: the network between a fleet
and its registry."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator

from benchmarks.hosts import Registry

FAULTS = ("", "registry killed", "registry slow", "partition")
"""What happens to the registry in the middle of a rollout."""
SLOW_SECONDS = 0.25
"""Seconds that each piece takes in each direction where the registry is slow."""
CHUNK = 1 << 16
"""The largest number of bytes that the relay passes on at once."""


class Relay:
    """Passes each connection on to one of ``targets``, in turn, and to the next one where one refuses.

    ``delay``: seconds that each piece takes in each direction. ``holds``: nothing is passed on any more, as
    in a partition; connections stay open and no side learns of it. Both may change at any time. ``answered``
    is set once a target has answered.
    """

    def __init__(self, *targets: str) -> None:
        self.targets = list(targets)
        self.delay = 0.0
        self.holds = False
        self.answered = threading.Event()
        self.url = ""
        self._turns = itertools.count()
        self._ready = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[Relay]:
        """Relay on a thread for the length of the block."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        self._ready.wait()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0, backlog=2048)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = await self._connect()
        if ends is None:
            writer.transport.abort()
            return
        there, back = ends
        ways = [
            asyncio.ensure_future(self._pass(reader, back, threading.Event())),
            asyncio.ensure_future(self._pass(there, writer, self.answered)),
        ]
        with contextlib.suppress(asyncio.CancelledError):  # the relay ends
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for end in (writer, back):
            end.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        first = next(self._turns)
        for turn in range(len(self.targets)):
            host, _, port = self.targets[(first + turn) % len(self.targets)].rpartition(":")
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(host, int(port))
        return None

    async def _read(self, source: asyncio.StreamReader) -> bytes:
        """Return the next piece; an empty one ends the connection."""
        return await source.read(CHUNK)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passed: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await self._read(source):
                if self.delay:
                    await asyncio.sleep(self.delay)
                while self.holds:
                    await asyncio.sleep(0.2)
                sink.write(chunk)
                await sink.drain()
                passed.set()


def fail(fault: str, first: Registry, relay: Relay) -> None:
    """Let one of `FAULTS` happen: kill the first replica, or slow or hold what the relay passes on."""
    if fault == "registry killed":
        os.kill(first.pid, signal.SIGKILL)
    relay.delay = SLOW_SECONDS if fault == "registry slow" else 0.0
    relay.holds = fault == "partition"
