"""Resolve in a steady, light pattern, and say how long each answer took."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .filling import FINGERPRINT, NAMES, place

CLIENTS = 8
"""Clients: half of them keep their connection, half open one for each resolve, as a service that starts."""
EVERY_SECONDS = 0.1
TIMEOUT_SECONDS = 10.0


@dataclass
class Outcome:
    """Holds the milliseconds of each answer, and what went wrong."""

    milliseconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass
class Clients:
    """The honest clients of a registry that ``filling`` has filled with ``names`` names."""

    url: str
    token: str
    names: int
    context: ssl.SSLContext | None = None
    _models: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def resolve(self, seconds: float) -> Outcome:
        """Resolve for so long."""
        return asyncio.run(self._resolve(seconds))

    async def _resolve(self, seconds: float) -> Outcome:
        outcome = Outcome()
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._client(number, end, outcome) for number in range(CLIENTS)))
        return outcome

    async def _client(self, number: int, end: float, outcome: Outcome) -> None:
        line: _Line | None = None
        due = time.monotonic() + EVERY_SECONDS * number / CLIENTS
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += EVERY_SECONDS
            began = time.perf_counter()
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    line = line or await _Line.connect(self.url, self.context)
                    await line.ask(self._request())
                outcome.milliseconds.append((time.perf_counter() - began) * 1000)
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                outcome.failures.append(f"{type(error).__name__}: {error}"[:200])
                anew = True
            else:
                anew = number % 2 == 1
            if anew and line is not None:
                line.close()
                line = None
        if line is not None:
            line.close()

    def _request(self) -> bytes:
        model = next(self._models)
        namespace, name = place(model * 7919 % min(self.names, NAMES))
        question = {"namespace": namespace, "name": name, "tags": ["latest"], "fingerprint": FINGERPRINT}
        body = json.dumps(question | {"model": f"sha256:{model:064x}"}).encode()
        head = (
            "POST /v1/resolve HTTP/1.1\r\nHost: registry\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass
class _Line:
    """A connection, by which a question takes little of this process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, url: str, context: ssl.SSLContext | None) -> _Line:
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port, ssl=context))

    async def ask(self, request: bytes) -> None:
        """Raise ``ValueError`` unless the answer is 200."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        size = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        body = await self.reader.readexactly(size)
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError(f"{lines[0].decode()}: {body[:100].decode(errors='replace')}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.writer.transport.abort()
