"""Count the bytes between the processes of a node and their registry."""

from __future__ import annotations

import asyncio

from benchmarks.fleet.relay import Relay


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

    async def _read(self, source: asyncio.StreamReader) -> bytes:
        chunk = b"" if self.lost else await super()._read(source)
        self.passed += len(chunk)
        return chunk
