"""Connect a command to its registry: over HTTP, or to the same API in this process with ``--local``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import typer

from cachesvc_client.queries.names import Connection
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import InvalidRequest, Unauthenticated, from_wire

if TYPE_CHECKING:
    from cachesvc_client.config.settings import Config
    from cachesvc_client.http.registry import Remote

R = TypeVar("R")

ANSWER_SECONDS = 600.0
"""Seconds that a command waits for one answer: a page of ``fsck --deep`` reads gigabytes."""
_MAX_ANSWER_BYTES = 192 << 20
"""Bytes of the largest answer that a command reads."""


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """The options of ``cachesvc admin`` itself, which stand before the name of a command."""

    local: bool
    data: Path | None
    config: Path | None


@contextmanager
def connect(context: typer.Context) -> Iterator[Connection]:
    """Connects to the registry that the options of ``cachesvc admin`` name.

    Raises ``InvalidRequest`` without a registry, ``Unauthenticated`` without a token.
    """
    options: AdminOptions = context.obj
    if options.local:
        with _connect_locally(options) as connection:
            yield connection
        return
    if options.data or options.config:
        raise InvalidRequest("--data and --config are for --local", "or give neither")
    with _configured_registry()[1] as remote:
        yield remote


def connect_over_http(context: typer.Context) -> tuple[Config, Remote]:
    """Returns the user's configuration and a connection to its registry, for commands that move packs.

    Raises ``InvalidRequest`` with ``--local`` and without a registry, ``Unauthenticated`` without a token.
    """
    if context.obj.local:
        raise InvalidRequest("this command works over the API", "leave --local out")
    return _configured_registry()


def _configured_registry() -> tuple[Config, Remote]:
    from cachesvc_client.config.settings import Config
    from cachesvc_client.http.registry import Remote

    config = Config.read()
    if config.url is None:
        raise InvalidRequest("no registry is configured", "set CACHESVC_URL or run: cachesvc login URL")
    if config.token is None:
        from cachesvc_client.console.answers import other_login

        other = other_login(config)
        hint = f"your login is for {other}: use that URL" if other else "cachesvc login URL --token-file FILE"
        raise Unauthenticated(f"no token for {config.url}", hint)
    return config, Remote(config.url, config.token, timeout=ANSWER_SECONDS, allow_links=config.allow_links)


@contextmanager
def _connect_locally(options: AdminOptions) -> Iterator[Connection]:
    try:
        from cachesvc.settings import read_settings
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"--local needs {error.name}", "pip install 'cachesvc[server]'") from None
    from cachesvc.api.app import create_app
    from cachesvc.bootstrap import open_registry, require_registry

    settings = read_settings(options.config, data=options.data)
    require_registry(settings)
    with open_registry(settings) as registry:
        yield _LocalConnection(create_app(registry))


class _LocalConnection:
    """Calls the application in this process. A user who can open its database needs no token."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def call(
        self, method: str, path: str, record: object | None, answer_type: type[R], *, idempotent: bool = True
    ) -> R:
        del idempotent
        return codec.build(answer_type, self._json(method, path, record))

    def rows(self, path: str, item: type[R]) -> tuple[R, ...]:
        return tuple(codec.build(item, row) for row in self._json("GET", path, None))

    def tell(self, method: str, path: str, record: object | None = None) -> None:
        asyncio.run(self._send(method, path, record))

    def _json(self, method: str, path: str, record: object | None) -> Any:
        answer = asyncio.run(self._send(method, path, record))
        return codec.parse_json(answer, limit=_MAX_ANSWER_BYTES, what="the answer")

    async def _send(self, method: str, path: str, record: object | None) -> bytes:
        """Sends one request by ASGI 3.0 (https://asgi.readthedocs.io/en/latest/specs/www.html)."""
        body = b"" if record is None else codec.canonical(record)
        status, parts = 0, []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self._application(_scope(method, path, body), receive, send)
        answer = b"".join(parts)
        if status >= 400:
            raise from_wire(status, json.loads(answer) if answer else None)
        return answer


def _scope(method: str, path: str, body: bytes) -> dict[str, Any]:
    from cachesvc.domain.access import ANY, Role, Token

    url = urlsplit(path)
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": url.path,
        "raw_path": url.path.encode(),
        "query_string": url.query.encode(),
        "root_path": "",
        "headers": [(b"content-type", b"application/json")] if body else [],
        "client": None,
        "server": None,
        "state": {"token": Token("console", "cachesvc admin --local", Role.admin, ANY)},
    }
