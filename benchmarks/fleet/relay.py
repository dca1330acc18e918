"""Relay TCP to a registry's replicas, and delay, hold or break the connections: the network between a fleet
and its registry."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator

CHUNK = 1 << 16
"""The largest number of bytes that the relay passes on at once."""


class Relay:
    """Passes each connection on to one of ``targets``, in turn, and to the next one where one refuses.

    ``delay``: seconds that each piece takes in each direction. ``holds``: nothing is passed on any more, as
    in a partition; connections stay open and no side learns of it. Both may change at any time.
    """

    def __init__(self, *targets: str) -> None:
        self.targets = list(targets)
        self.delay = 0.0
        self.holds = False
        self.url = ""
        self._turns = itertools.count()
        self._loop = asyncio.new_event_loop()
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
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was stopped
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0, backlog=2048)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await server.serve_forever()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = await self._connect()
        if ends is None:
            writer.transport.abort()
            return
        there, back = ends
        ways = [
            asyncio.ensure_future(self._pass(reader, back)),
            asyncio.ensure_future(self._pass(there, writer)),
        ]
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

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                while self.holds:
                    await asyncio.sleep(0.2)
                sink.write(chunk)
                await sink.drain()
