"""Count the bytes between the processes of a node and their registry."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from benchmarks.fleet.relay import CHUNK, Relay


class CountingRelay(Relay):
    """Passes connections on, and counts the bytes of both directions in ``passed``, heads of HTTP too.

    ``lost``: the registry is gone: every open connection breaks, and every new one is closed at once.
    """

    def __init__(self, *targets: str) -> None:
        super().__init__(*targets)
        self.passed = 0
        self.lost = False

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.lost:
            writer.transport.abort()
            return
        await super()._relay(reader, writer)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passed: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while not self.lost and (chunk := await source.read(CHUNK)):
                self.passed += len(chunk)
                if self.delay:
                    await asyncio.sleep(self.delay)
                sink.write(chunk)
                await sink.drain()
                passed.set()
