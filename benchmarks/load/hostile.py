"""Hold many hostile connections to a server, from one event loop: they wait, or send a little.

A process of its own, so that its work delays no honest client; it reads its ``Attack`` as JSON from stdin and
ends at the end of stdin, with its counts on stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

REOPEN_SECONDS = 10.0
"""Seconds until a connection that was answered or ended is opened again: what is measured is what connections
hold, and no flood of new ones."""
OPENING_SECONDS = REOPEN_SECONDS
"""Seconds in which all connections are opened, so that they are not opened again all at once."""


@dataclass(frozen=True)
class Attack:
    """Says what each connection sends: one of ``heads``, then ``part`` bytes in each second, ``most`` in
    all. ``reads``: whether it reads the answer."""

    name: str
    who: str
    heads: tuple[str, ...] = ()
    part: int = 0
    most: int = 0
    reads: bool = True

    def to_json(self, host: str, port: int, connections: int, opening: float) -> str:
        """Return the line that the process reads. ``opening``: seconds in which all are opened."""
        place = {"host": host, "port": port, "connections": connections, "opening": opening}
        return json.dumps({**asdict(self), **place})


class _Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, attack: Attack, number: int, counts: Counter[str], lost: asyncio.Event) -> None:
        self._attack, self._counts, self._lost = attack, counts, lost
        self._head = attack.heads[number % len(attack.heads)] if attack.heads else ""
        self._sent, self._paused = 0, False
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if not self._attack.reads:
            transport.pause_reading()
        transport.write(self._head.encode())

    def data_received(self, data: bytes) -> None:
        self._counts[f"answered {data[9:12].decode(errors='replace')}"] += 1
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._lost.set()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def send_part(self) -> None:
        """Send a part of the body, unless the server does not take the one before."""
        size = min(self._attack.part, self._attack.most - self._sent)
        if size > 0 and not self._paused:
            self._transport.write(b"x" * size)
            self._sent += size


async def _hold(attack: Attack, number: int, place: dict[str, Any], counts: Counter[str]) -> None:
    """Have one connection, for ever."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(place["opening"] * number / place["connections"])
    while True:
        lost = asyncio.Event()
        try:
            transport, line = await loop.create_connection(
                lambda lost=lost: _Line(attack, number, counts, lost),  # type: ignore[misc]
                place["host"],
                place["port"],
            )
        except OSError:
            counts["refused"] += 1
            await asyncio.sleep(REOPEN_SECONDS)
            continue
        counts["opened"] += 1
        try:
            await _drip(line, lost)
            counts["ended"] += 1
        finally:
            transport.abort()
        await asyncio.sleep(REOPEN_SECONDS)


async def _drip(line: _Line, lost: asyncio.Event) -> None:
    while not lost.is_set():
        try:
            async with asyncio.timeout(1):
                await lost.wait()
        except TimeoutError:
            line.send_part()


async def _main() -> None:
    told = json.loads(sys.stdin.readline())
    place = {name: told.pop(name) for name in ("host", "port", "connections", "opening")}
    attack, counts = Attack(**told), Counter[str]()
    tasks = [
        asyncio.create_task(_hold(attack, number, place, counts)) for number in range(place["connections"])
    ]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    counts["open at the end"] = counts["opened"] - counts["ended"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(counts))


if __name__ == "__main__":
    asyncio.run(_main())
