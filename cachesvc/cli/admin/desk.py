"""Where the commands ask, and how they show what they get."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

import typer

from cachesvc_client.commands.tables import aligned
from cachesvc_client.wire import codec
from cachesvc_client.wire.admin import MAX_PAGE
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, Unauthenticated, from_wire
from cachesvc_client.wire.names import Namespace

if TYPE_CHECKING:
    from cachesvc_client.config import Config
    from cachesvc_client.http.registry import Remote

R = TypeVar("R")

SECONDS = 600.0
"""That a command waits for one answer: a page of ``fsck --deep`` reads gigabytes."""
_MAX_ANSWER = 192 << 20

AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without, the plan is printed.")]
Limit = Annotated[int, typer.Option(min=1, help="Rows, at most.")]


@dataclass(frozen=True, slots=True)
class Where:
    """What was said to ``cachesvc admin`` itself."""

    local: bool
    data: Path | None
    config: Path | None


class Desk(Protocol):
    """What answers: a registry's API over HTTP, or the same API in this process."""

    def call(
        self, method: str, path: str, record: object | None, answer_type: type[R], *, idempotent: bool = True
    ) -> R: ...

    def rows(self, path: str, item: type[R]) -> tuple[R, ...]: ...

    def tell(self, method: str, path: str, record: object | None = None) -> None: ...


@contextmanager
def desk(context: typer.Context) -> Iterator[Desk]:
    """The one that was asked for. Raises ``InvalidRequest`` without a registry or a token."""
    where: Where = context.obj
    if where.local:
        with _local(where) as console:
            yield console
        return
    if where.data or where.config:
        raise InvalidRequest("--data and --config are for --local", "or give neither")
    with connected()[1] as remote:
        yield remote


def connected() -> tuple[Config, Remote]:
    """The user's configuration, and the registry in it. Raises ``InvalidRequest``, ``Unauthenticated``."""
    from cachesvc_client.config import Config
    from cachesvc_client.http.registry import Remote

    config = Config.read()
    if config.url is None:
        raise InvalidRequest("no registry is configured", "set CACHESVC_URL or run: cachesvc login URL")
    if config.token is None:
        raise Unauthenticated(f"no token for {config.url}", "cachesvc login URL --token csv_…")
    return config, Remote(config.url, config.token, timeout=SECONDS)


def over_api(context: typer.Context) -> tuple[Config, Remote]:
    """:func:`connected`, for commands that move packs. Raises ``InvalidRequest`` with ``--local``."""
    if context.obj.local:
        raise InvalidRequest("this command moves packs over the API", "leave --local out")
    return connected()


@contextmanager
def _local(where: Where) -> Iterator[Desk]:
    try:
        from cachesvc.settings import read_settings
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"--local needs {error.name}", "pip install 'cachesvc[server]'") from None
    from cachesvc.api.app import create_app
    from cachesvc.bootstrap import open_registry

    with open_registry(read_settings(where.config, data=where.data)) as registry:
        yield _Console(create_app(registry))


class _Console:
    """The application, called in this process by whoever may open its database: no token is asked for."""

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
        asyncio.run(self._ask(method, path, record))

    def _json(self, method: str, path: str, record: object | None) -> Any:
        return codec.parse_json(
            asyncio.run(self._ask(method, path, record)), limit=_MAX_ANSWER, what="the answer"
        )

    async def _ask(self, method: str, path: str, record: object | None) -> bytes:
        """One request by ASGI 3.0 (https://asgi.readthedocs.io/en/latest/specs/www.html)."""
        from cachesvc.domain.access import ANY, Role, Token

        asked = urlsplit(path)
        body = b"" if record is None else codec.canonical(record)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": asked.path,
            "raw_path": asked.path.encode(),
            "query_string": asked.query.encode(),
            "root_path": "",
            "headers": [(b"content-type", b"application/json")] if body else [],
            "client": None,
            "server": None,
            "state": {"token": Token("console", "cachesvc admin --local", Role.admin, ANY)},
        }
        status, parts = 0, []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self._application(scope, receive, send)
        answer = b"".join(parts)
        if status >= 400:
            raise from_wire(status, json.loads(answer) if answer else None)
        return answer


def path(base: str, **query: object) -> str:
    """A path with its query. What is ``None``, false or empty is left out; a list is repeated."""
    held = {name: value for name, value in query.items() if value not in (None, False, "", ())}
    told = {name: "true" if value is True else value for name, value in held.items()}
    return f"{base}?{urlencode(told, doseq=True)}" if told else base


def pages(at: Desk, base: str, page: Any, most: int | None, **query: object) -> Iterator[Any]:
    """The rows of a paged listing, at most ``most``, fetched as they are taken."""
    cursor: str | None = None
    left = most
    while left is None or left > 0:
        size = MAX_PAGE if left is None else min(left, MAX_PAGE)
        got = at.call("GET", path(base, cursor=cursor, limit=size, **query), None, page)
        yield from got.rows
        left = None if left is None else left - len(got.rows)
        cursor = got.next
        if cursor is None:
            return


def digest_of(at: Desk, kind: str, text: str) -> Digest:
    """The entry or revision that is meant: a digest, or the beginning of one. Raises ``Corrupt`` if the
    registry completes it to one that begins otherwise."""
    if Digest.pattern.fullmatch(text):
        return Digest(text)
    beginning = text.removeprefix("sha256:")
    if not (beginning.isalnum() and beginning.isascii()):
        raise InvalidRequest(
            f"{kind}: {text[:80]!r}", "give its digest, or 4 or more of its first hex digits"
        )
    found = at.call("GET", f"/v1/digests/{kind}/{beginning}", None, _Completed).digest
    if not found.hex.startswith(beginning.lower()):
        raise Corrupt(f"the registry answered {found} for the {kind} that begins with {beginning}")
    return found


@dataclass(frozen=True, slots=True)
class _Completed:
    digest: Digest


def namespace_of(text: str) -> Namespace:
    """Raises ``InvalidRequest`` with what is allowed."""
    try:
        return Namespace(text)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def made(build: Callable[[], R]) -> R:
    """What ``build`` makes of options; a ``ValueError`` is the user's."""
    try:
        return build()
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


# Showing.


def show(
    rows: Sequence[Any], columns: Mapping[str, Callable[[Any], object]], as_json: bool, none: str = "none"
) -> None:
    """A table with a heading, or the records as JSON."""
    if as_json:
        say_json(rows)
        return
    if not rows:
        typer.echo(none)
        return
    typer.echo(aligned([tuple(columns), *(tuple(cell(row) for cell in columns.values()) for row in rows)]))


def show_facts(facts: Iterable[tuple[str, object]], record: object, as_json: bool) -> None:
    """One thing, a line for each fact that is known."""
    if as_json:
        say_json(record)
        return
    typer.echo(aligned([(name, value) for name, value in facts if value not in (None, "")]))


def say_json(value: object) -> None:
    """Indented, with sorted keys."""
    typer.echo(json.dumps(codec.plain(value), indent=1, sort_keys=True, ensure_ascii=False))


def planned(
    rows: Sequence[Any],
    columns: Mapping[str, Callable[[Any], object]],
    *,
    applied: bool,
    as_json: bool,
    summary: str,
) -> None:
    """What a destructive command would do, or has done."""
    if as_json:
        say_json({"applied": applied, "plan": list(rows), "summary": summary})
        return
    if rows:
        show(rows, columns, False)
    typer.echo(summary if applied else f"plan: {summary}")
    if not applied:
        typer.echo("nothing was changed; --apply does it", err=True)


def short(digest: str | None) -> str:
    """The first digits, as commands take them."""
    return digest.removeprefix("sha256:")[:12] if digest else ""


def when(seconds: int | None) -> str:
    """A time of UTC to the minute."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def place(row: Any) -> str:
    """``namespace/name:tag``, and the lane."""
    lane = getattr(row, "lane", None)
    return f"{row.namespace}/{row.name}:{row.tag}" + (f" [{lane}]" if lane else "")


def seconds(value: float) -> str:
    """``12.3 s``, ``2.5 h``."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(value) >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.1f} s"
