"""A registry's application in this process: requests without a socket, so that thousands take seconds."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI

from cachesvc.api.app import create_app
from cachesvc.registry.context import Registry


@dataclass(frozen=True)
class Answer:
    """The status and the body of an answer."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Application:
    """The application of a registry, with its background tasks, on an event loop of its own thread."""

    def __init__(self, registry: Registry) -> None:
        self.app: FastAPI = create_app(registry)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stop = asyncio.Event()
        self._ready = threading.Event()

    def request(
        self,
        method: str,
        path: str,
        *,
        secret: str | None = None,
        query: Mapping[str, object] | None = None,
        body: object = None,
    ) -> Answer:
        """Sends one request. ``body``: bytes as they are, another value as JSON."""
        headers = [(b"host", b"registry")]
        if secret is not None:
            headers.append((b"authorization", b"Bearer " + secret.encode()))
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.append((b"content-type", b"application/json"))
        return self.send(method, path, urlencode(query or {}), headers, body or b"")

    def send(
        self, method: str, path: str, query: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> Answer:
        """Sends one request as it is. Raises what the application raises."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(errors="surrogatepass"),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [*headers, (b"content-length", str(len(body)).encode())],
            "client": ("127.0.0.1", 1),
            "server": ("registry", 80),
        }
        return asyncio.run_coroutine_threadsafe(self._answer(scope, body), self._loop).result(60)

    async def _answer(self, scope: dict[str, Any], body: bytes) -> Answer:
        messages: list[dict[str, Any]] = []
        ended = asyncio.Event()
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            part = next(parts, None)
            if part is None:
                await ended.wait()
                return {"type": "http.disconnect"}
            return part

        async def send(message: Any) -> None:
            messages.append(message)

        try:
            await self.app(scope, receive, send)
        finally:
            ended.set()
        content = b"".join(message.get("body", b"") for message in messages[1:])
        return Answer(messages[0]["status"], content)

    async def _live(self) -> None:
        async with self.app.router.lifespan_context(self.app):
            self._ready.set()
            await self._stop.wait()

    @contextmanager
    def running(self) -> Iterator[Application]:
        """Runs the background tasks until the block ends."""
        self._thread.start()
        life = asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        assert self._ready.wait(30)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            life.result(30)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)
            self._loop.close()
