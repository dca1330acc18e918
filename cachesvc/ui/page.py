"""Render pages, and turn every error of a page into a page."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import ClientDisconnect

import cachesvc
from cachesvc.domain.access import ANY, Role, Token, describe
from cachesvc.domain.people import Grant
from cachesvc.door.route import DoorRoute, Handler
from cachesvc.registry.access.sessions import token_of_session
from cachesvc.registry.context import Registry
from cachesvc_client.http.origin import split_url
from cachesvc_client.wire.errors import CacheSvcError, NotFound, Unauthenticated

from . import session, text
from .changes import DONE

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer: nothing from elsewhere is loaded, no script runs, no other site frames a page or
learns its address."""
STATIC = {"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}
"""The files beside the pages, with their types."""

_log = logging.getLogger("cachesvc.ui")


@cache
def static_file(name: str) -> tuple[bytes, str]:
    """Returns the bytes of a file beside the pages, and the digest that stands in its address."""
    data = files(__package__).joinpath("static", name).read_bytes()
    return data, hashlib.sha256(data).hexdigest()[:16]


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(text.FILTERS)
    environment.globals.update(
        version=cachesvc.__version__,
        static=lambda name: f"{session.HOME}/static/{name}?v={static_file(name)[1]}",
    )
    return environment


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """Returns the page of a template. Everything in ``context`` is escaped where it stands in HTML."""
    registry: Registry = request.app.state.registry
    token: Token | None = getattr(request.state, "token", None)
    secret = session.session_secret(request)
    now = registry.now
    body = (
        _templates()
        .get_template(template)
        .render(
            token=token,
            rights=_rights(token) if token else "",
            is_admin=token is not None and token.role is Role.admin,
            csrf=session.form_token(secret) if secret else "",
            path=request.url.path,
            done=DONE.get(request.query_params.get("done", "")) if token else None,
            now=now,
            ago=partial(text.ago_text, now=now),
            **context,
        )
    )
    return HTMLResponse(body, status, {**HEADERS, "Cache-Control": "no-store"})


def _rights(token: Token) -> str:
    return f"{token.role.name} in every namespace" if token.namespace == ANY else describe(token)


def login_page(request: Request, next_page: str, error: CacheSvcError | None = None) -> HTMLResponse:
    """Returns the page with the form of a login, which leads to ``next_page``."""
    secret = session.login_secret(request)
    answer = render(
        request,
        "login.html",
        status=error.status if error else 200,
        login_csrf=session.form_token(secret),
        next_page=next_page,
        error=error,
        allowed=session.may_send_token(request),
        **_provider(request),
    )
    if error is not None and error.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    session.set_login(request, answer, secret)
    return answer


def _provider(request: Request) -> dict[str, Any]:
    """Returns the host at which people log in, if they do, and whether this browser can begin here."""
    registry: Registry = request.app.state.registry
    login = registry.outside.login
    if login is None:
        return {"provider": "", "begins_here": False, "begins_at": ""}
    host = split_url(login.client.issuer, "issuer")[0].netloc
    return {"provider": host, "begins_here": session.is_at(request, login.page), "begins_at": login.page}


def choice_page(request: Request, next_page: str, name: str, grants: list[Grant]) -> HTMLResponse:
    """Returns the page on which someone chooses as what to act: each form begins another login with it."""
    secret = session.login_secret(request)
    csrf = session.form_token(secret)
    answer = render(request, "choice.html", name=name, grants=grants, login_csrf=csrf, next_page=next_page)
    session.set_login(request, answer, secret)
    return answer


def going_page(request: Request, title: str, address: str) -> HTMLResponse:
    """Returns a page that leads to ``address`` by itself. A redirect would not do: the policy lets a form
    lead to these pages alone, and with what another site began the session's cookie is not sent."""
    answer = render(request, "going.html", title=title, address=address)
    answer.headers["Refresh"] = f"0; url={address}"
    return answer


class PageRoute(DoorRoute):
    """A route whose errors are pages too."""

    def get_route_handler(self) -> Handler:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(request)
            except RequestValidationError as error:
                where = error.errors()[0]["loc"][-1]
                return _error_page(request, NotFound(f"there is no such page: {where} is not valid"))
            except Unauthenticated as error:
                request.state.token = None
                return login_page(request, _own_address(request), error)
            except CacheSvcError as error:
                return _error_page(request, error)
            except ClientDisconnect:
                raise
            except Exception as error:  # noqa: BLE001 - a defect is a page too, and is logged
                return _defect_page(request, error)

        return handler


class SessionRoute(PageRoute):
    """A route for a browser that is logged in. Each request reads the session and its token from the index,
    so that a revocation holds at once."""

    async def identify(self, request: Request) -> Token:
        secret = session.session_secret(request)
        if not secret:
            raise Unauthenticated("log in to see this page")
        registry: Registry = request.app.state.registry
        token = await to_thread.run_sync(token_of_session, registry, secret)
        request.state.token = token
        # The limit of the API counts these requests too. The outermost middleware ends the count.
        request.state.leave = request.app.state.request_counts.enter(token)
        return token


def _own_address(request: Request) -> str:
    if request.method != "GET":
        return session.HOME
    query = f"?{request.url.query}" if request.url.query else ""
    return session.next_page(request.url.path + query)


def _error_page(request: Request, error: CacheSvcError) -> HTMLResponse:
    if error.status >= 500:
        _log.error("%s %s [%s]: %s", request.method, request.url.path, request.state.request_id, error)
    answer = render(request, "error.html", status=error.status, error=error, title=_title(error.status))
    if error.retry:
        answer.headers["Retry-After"] = "5"
    return answer


def _defect_page(request: Request, error: Exception) -> HTMLResponse:
    request_id = request.state.request_id
    _log.error("%s %s [%s]", request.method, request.url.path, request_id, exc_info=error)
    failed = CacheSvcError("internal error", f"tell the operator: request {request_id}")
    return render(request, "error.html", status=failed.status, error=failed, title="Something went wrong")


def _title(status: int) -> str:
    titles = {403: "Not allowed", 404: "Not found", 422: "Not valid", 429: "Too many requests"}
    return titles.get(status, "Not available now" if status >= 500 else "Refused")


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at a page: the request, and the token of its session."""

    request: Request
    registry: Registry
    token: Token

    def page(self, template: str, **context: Any) -> HTMLResponse:
        """Returns the page of a template."""
        return render(self.request, template, **context)


async def _viewer(request: Request) -> Viewer:
    return Viewer(request, request.app.state.registry, request.state.token)


TheViewer = Annotated[Viewer, Depends(_viewer)]
