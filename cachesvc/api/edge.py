"""Give every request an id, a log line and a measurement, and every error one form."""

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

from cachesvc import spans
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import (
    CacheSvcError,
    InvalidRequest,
    NotFound,
    ProtocolMismatch,
    StorageFull,
    Unavailable,
    to_wire,
)
from cachesvc_client.wire.requests.protocol import API_HEADER, API_VERSION

from . import logs
from .denials import Denials
from .metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_log = logging.getLogger("cachesvc.api")
_requests = logging.getLogger("cachesvc.requests")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Json(Response):
    """Renders a record as canonical JSON without the fields that are ``None``; bytes are JSON already."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes | memoryview:
        return content if isinstance(content, bytes | memoryview) else codec.canonical(content)


class Edge:
    """The outermost middleware: it measures and logs every request, however the request ends."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._denials = Denials()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        client_id = headers.get(b"x-request-id", "")
        request_id = client_id if _ID.fullmatch(client_id) else f"{random.getrandbits(64):016x}"
        scope.setdefault("state", {})["request_id"] = request_id
        logs.request_id.set(request_id)
        response = _ResponseObserver(send, request_id)
        with spans.request_span(scope["method"], scope["path"], headers) as span:
            try:
                await self._answer(scope, receive, response, headers)
            finally:
                route = getattr(scope.get("route"), "path", "")
                spans.answered(span, scope["method"], route, response.status or 499, request_id)

    async def _answer(
        self, scope: Scope, receive: Receive, response: _ResponseObserver, headers: dict[bytes, str]
    ) -> None:
        began = time.monotonic()
        try:
            if b"transfer-encoding" in headers and b"content-length" in headers:
                await _two_lengths()(scope, receive, response)
                return
            _check_version(headers.get(API_HEADER.lower().encode()))
            await self._app(scope, receive, response)
        except CacheSvcError as error:
            if response.status:
                raise
            await failure(error)(scope, receive, response)
        except Exception:
            response.status = response.status or 500  # Starlette answers it, outside of this middleware
            raise
        finally:
            # Only now: a streamed answer counts as under way until it is sent.
            scope["state"].get("leave", _no_count)()
            self._record(scope, response, time.monotonic() - began)

    def _record(self, scope: Scope, response: _ResponseObserver, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "")
        status = response.status or 499  # the client went away before an answer
        self._metrics.answered(scope["method"], route, status, seconds)
        if status in (401, 403):
            address = (scope.get("client") or ("unknown",))[0]
            token = scope["state"].get("token")
            self._denials.note(
                status, address, token.token if token else "", f"{scope['method'][:20]} {route or '?'}"
            )
        if _requests.isEnabledFor(logging.INFO):
            token = scope["state"].get("token")
            fields = {
                "method": scope["method"][:20],
                "path": scope["path"][:500],
                "route": route,
                "status": status,
                "seconds": round(seconds, 6),
                "bytes": response.size,
                "token": token.token if token else None,
            }
            _requests.info("%s %s %d", fields["method"], fields["path"], status, extra={"fields": fields})


def _no_count() -> None:
    """Ends nothing: `access.RequestCounts` has not counted this request."""


class _ResponseObserver:
    """Adds the API's headers to a response on its way out, and keeps its status and its size in bytes."""

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


def _check_version(version: str | None) -> None:
    if version is not None and version.strip() != str(API_VERSION):
        raise ProtocolMismatch(
            f"the client speaks API {version[:20]!r}; this registry speaks {API_VERSION}",
            "install a cachesvc-client of the registry's version",
        )


def _two_lengths() -> Json:
    """Returns the answer to a request whose body ends in two places. A proxy may have taken the other one:
    then what follows on the connection is not the next request (RFC 9112, section 6.3)."""
    answer = failure(InvalidRequest("request: both Content-Length and Transfer-Encoding", "send one of them"))
    answer.headers["Connection"] = "close"
    return answer


def failure(error: CacheSvcError) -> Json:
    """Returns the answer to a request that ended with ``error``."""
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry:
        headers["Retry-After"] = "1"
    return Json(to_wire(error), error.status, headers)


def install(app: FastAPI, metrics: Metrics) -> None:
    """Installs the middleware and the error handlers in ``app``, so that every error has one form."""
    app.add_middleware(Edge, metrics=metrics)
    app.add_exception_handler(CacheSvcError, _on_own_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_framework_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_defect)


async def _on_own_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CacheSvcError)
    if error.status >= 500:
        # A full quota or disk is the operator's to widen, and has alerts of its own.
        level = logging.WARNING if isinstance(error, StorageFull) else logging.ERROR
        _log.log(level, "%s %s [%s]: %s", request.method, request.url.path, request.state.request_id, error)
    return failure(error)


async def _on_invalid_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    more = len(error.errors()) - 1
    return failure(InvalidRequest(f"{where}: {message}"[:500], f"and {more} more" if more else ""))


async def _on_framework_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # FastAPI raises this for any error while it reads a JSON body, with the error as its cause.
    if isinstance(error.__cause__, CacheSvcError):
        return await _on_own_error(request, error.__cause__)
    if isinstance(error.__cause__, ClientDisconnect):
        return await _on_disconnect(request, error.__cause__)
    path, method = request.url.path[:200], request.method
    if error.status_code == 404:
        failed: CacheSvcError = NotFound(f"there is no {path}", "see /openapi.json")
    elif error.status_code == 405:
        failed = InvalidRequest(f"{method} is not allowed on {path}", "see /openapi.json")
    else:
        failed = InvalidRequest(
            "body: not JSON that can be read", " ".join(str(error.__cause__ or error.detail).split())[:200]
        )
    answer = failure(failed)
    if error.status_code == 405:
        answer.status_code = 405
    answer.headers.update(error.headers or {})
    return answer


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return failure(Unavailable("the connection ended before the body"))


async def _on_defect(request: Request, error: Exception) -> Response:
    request_id = request.state.request_id
    _log.error("%s %s [%s]", request.method, request.url.path, request_id, exc_info=error)
    return failure(CacheSvcError("internal error", f"tell the operator: request {request_id}"))
