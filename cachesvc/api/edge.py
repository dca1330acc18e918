"""What every request passes: identity of the API, request ids, errors in one form."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import (
    CacheSvcError,
    InvalidRequest,
    NotFound,
    ProtocolMismatch,
    Unavailable,
    to_wire,
)
from cachesvc_client.wire.protocol import API_HEADER, API_VERSION

from . import logs
from .metrics import Metrics

REQUEST_ID = "X-Request-Id"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_log = logging.getLogger("cachesvc.api")
_requests = logging.getLogger("cachesvc.requests")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Json(Response):
    """A record as canonical JSON; ``bytes`` are JSON already. Fields that are ``None`` are left out."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else codec.canonical(content)


class Edge:
    """The outermost middleware. Every request, however it ends, is measured and has a line in the log."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", "")
        request_id = given if _ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        scope.setdefault("state", {})["request_id"] = request_id
        logs.request_id.set(request_id)
        sent = _Sent(send, request_id)
        began = time.monotonic()
        try:
            _check_version(headers.get(API_HEADER.lower().encode()))
            await self._app(scope, receive, sent)
        except CacheSvcError as error:
            if sent.status:
                raise
            await failure(error)(scope, receive, sent)
        except Exception:
            sent.status = sent.status or 500  # which is answered outside of here
            raise
        finally:
            # Only now: an answer that is streamed takes a place until it is sent.
            scope["state"].get("leave", _nothing)()
            self._told(scope, sent, time.monotonic() - began)

    def _told(self, scope: Scope, sent: _Sent, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "")
        status = sent.status or 499  # the client went away before an answer
        self._metrics.answered(scope["method"], route, status, seconds)
        if _requests.isEnabledFor(logging.INFO):
            token = scope["state"].get("token")
            fields = {
                "method": scope["method"][:20],
                "path": scope["path"][:500],
                "route": route,
                "status": status,
                "seconds": round(seconds, 6),
                "bytes": sent.size,
                "token": token.token if token else None,
            }
            _requests.info("%s %s %d", fields["method"], fields["path"], status, extra={"fields": fields})


def _nothing() -> None:
    """A request that took no place."""


class _Sent:
    """Marks the answer as ours on its way out, and remembers what went."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._request_id = send, request_id
        self.status, self.size = 0, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *message.get("headers", []),
                (API_HEADER.lower().encode(), str(API_VERSION).encode()),
                (b"x-request-id", self._request_id.encode()),
            ]
        self.size += len(message.get("body", b""))
        await self._send(message)


def _check_version(asked: str | None) -> None:
    if asked is not None and asked.strip() != str(API_VERSION):
        raise ProtocolMismatch(
            f"the client speaks API {asked[:20]!r}; this registry speaks {API_VERSION}",
            "install a cachesvc-client of the registry's version",
        )


def failure(error: CacheSvcError) -> Json:
    """The answer that an error stands for."""
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry:
        headers["Retry-After"] = "1"
    return Json(to_wire(error), error.status, headers)


def install(app: FastAPI, metrics: Metrics) -> None:
    """Puts the edge around ``app``: after it no answer has another form of error."""
    app.add_middleware(Edge, metrics=metrics)
    app.add_exception_handler(CacheSvcError, _ours)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unexpected)


def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, CacheSvcError)
    if error.status >= 500:
        _log.error("%s %s [%s]: %s", request.method, request.url.path, request.state.request_id, error)
    return failure(error)


def _malformed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    said = str(first["msg"]).removeprefix("Value error, ")
    more = len(error.errors()) - 1
    return failure(InvalidRequest(f"{where}: {said}"[:500], f"and {more} more" if more else ""))


def _framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # FastAPI reports whatever happens while it reads a JSON body as this, with the cause behind it.
    if isinstance(error.__cause__, CacheSvcError):
        return _ours(request, error.__cause__)
    if isinstance(error.__cause__, ClientDisconnect):
        return _gone(request, error.__cause__)
    path, method = request.url.path[:200], request.method
    if error.status_code == 404:
        made: CacheSvcError = NotFound(f"there is no {path}", "see /openapi.json")
    elif error.status_code == 405:
        made = InvalidRequest(f"{method} is not allowed on {path}", "see /openapi.json")
    else:
        made = InvalidRequest(
            "body: not JSON that can be read", " ".join(str(error.__cause__ or error.detail).split())[:200]
        )
    answer = failure(made)
    if error.status_code == 405:
        answer.status_code = 405
    answer.headers.update(error.headers or {})
    return answer


def _gone(_request: Request, _error: Exception) -> Response:
    return failure(Unavailable("the connection ended before the body"))


def _unexpected(request: Request, error: Exception) -> Response:
    request_id = request.state.request_id
    _log.error("%s %s [%s]", request.method, request.url.path, request_id, exc_info=error)
    return failure(CacheSvcError("internal error", f"tell the operator: request {request_id}"))
