"""Routes that need no session: login, logout, and the files beside the pages."""

from __future__ import annotations

import hashlib

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from cachesvc.registry.access.sessions import SESSION_SECONDS, close_session, open_session
from cachesvc.registry.context import Registry
from cachesvc_client.wire.errors import Forbidden, NotFound, TooMany, Unauthenticated

from . import session
from .page import HEADERS, STATIC, PageRoute, login_page, static_file

LOGIN_SECONDS = 5.0
"""Seconds over which logins are counted."""
LOGINS = 20
"""Logins that one address, and one secret, may try in vain at one replica in ``LOGIN_SECONDS``. A secret is
too long to be guessed: this says so to anyone who tries. Many people may come from one proxy's address, so a
login that succeeds is never refused for what others tried there."""

router = APIRouter(prefix=session.HOME, route_class=PageRoute, include_in_schema=False)
fallback = APIRouter(prefix=session.HOME, route_class=PageRoute, include_in_schema=False)
"""The route of all addresses that no other route has; it comes after the others."""


@router.get("/login")
async def get_login(request: Request, next: str = "") -> Response:
    """Shows the form of a login."""
    return login_page(request, session.next_page(next))


@router.post("/login")
async def post_login(request: Request) -> Response:
    """Opens a new session for a token, and ends the browser's earlier one."""
    registry: Registry = request.app.state.registry
    fields = await session.read_form(request)
    session.demand_form_token(session.login_secret(request), fields)
    if not session.may_send_token(request):
        raise Forbidden("a token does not go over plain HTTP to another machine", "use HTTPS")
    destination = session.next_page(fields.get("next"))
    token = fields.get("token", "").strip()
    account = f"logins/token/{hashlib.sha256(token.encode(errors='replace')).hexdigest()}"
    demand_few(registry, account)
    try:
        secret = await to_thread.run_sync(open_session, registry, token)
    except Unauthenticated as error:
        demand_few(registry, login_place(request, "token"))
        return login_page(request, destination, error)
    registry.memory.drop(account)
    if earlier := session.session_secret(request):
        await to_thread.run_sync(close_session, registry, earlier)
    answer = _redirect(destination)
    session.set_session(request, answer, secret, SESSION_SECONDS)
    return answer


@router.post("/logout")
async def post_logout(request: Request) -> Response:
    """Ends the session here and everywhere."""
    fields = await session.read_form(request)
    secret = session.session_secret(request)
    session.demand_form_token(secret, fields)
    await to_thread.run_sync(close_session, request.app.state.registry, secret)
    answer = _redirect(f"{session.HOME}/login")
    session.end_session(request, answer)
    return answer


def login_place(request: Request, way: str) -> str:
    """Returns the key under which logins from the request's address are counted. ``way``: each way to log in
    has its own, so that anyone who tries the one keeps no one from the other."""
    address = request.client.host if request.client else "unknown"
    return f"logins/{way}/from/{address[:64]}"


def demand_few(registry: Registry, key: str) -> None:
    """Counts a login under ``key``. Raises ``TooMany`` above ``LOGINS``."""
    if registry.memory.count(key, LOGIN_SECONDS) > LOGINS:
        raise TooMany("too many logins that failed", "try again in a few seconds")


@router.get("/static/{name}")
async def get_static(name: str) -> Response:
    """Returns a file beside the pages. Its address changes with its content, so browsers keep it."""
    if name not in STATIC:
        raise NotFound("there is no such file")
    data, _ = static_file(name)
    kept = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(data, media_type=STATIC[name], headers={**HEADERS, **kept})


@fallback.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def get_nothing(request: Request, path: str) -> Response:
    """Says that there is no such page."""
    if not path and request.method == "GET":
        return _redirect(session.HOME)
    raise NotFound("there is no such page")


def _redirect(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303, {**HEADERS, "Cache-Control": "no-store"})
