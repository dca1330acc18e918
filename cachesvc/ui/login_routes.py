"""Routes of a login at an identity provider: to its page, and back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
from anyio import to_thread
from fastapi import APIRouter, Request, Response

from cachesvc.oidc.login import Attempt
from cachesvc.registry.access import logins
from cachesvc.registry.access.sessions import close_session, new_secret
from cachesvc.registry.context import Registry
from cachesvc_client.wire.errors import CacheSvcError, Forbidden, TooMany, Unauthenticated

from . import session
from .open_routes import demand_few, login_place
from .page import PageRoute, choice_page, going_page, login_page

MAX_WAITING = 64
"""Logins that wait for their turn in one process, at most: a provider may need seconds to answer."""
MAX_GRANT, MAX_NEXT = 200, 1500
"""Characters of a choice, and of the address of a page, at most: a cookie has both, and browsers drop those
of more than 4096 bytes."""

router = APIRouter(prefix=session.HOME, route_class=PageRoute, include_in_schema=False)
T = TypeVar("T")
_log = logging.getLogger("cachesvc.ui")


@router.post("/login/provider")
async def post_provider(request: Request) -> Response:
    """Begins a login at the identity provider, and ends the browser's session."""
    registry: Registry = request.app.state.registry
    login = logins.login_of(registry)
    fields = await session.read_form(request)
    session.demand_form_token(session.login_secret(request), fields)
    if not session.is_at(request, login.page):
        # The cookie of this host would not come back to that one.
        raise Forbidden(f"this login begins at {login.page}", "open the page there")
    destination = session.next_page(fields.get("next", "")[:MAX_NEXT])
    attempt = Attempt(new_secret())
    try:
        address = await _in_turn(request, partial(logins.begin, registry, attempt))
    except CacheSvcError as error:
        return _failed(request, destination, error)
    if earlier := session.session_secret(request):
        await to_thread.run_sync(close_session, registry, earlier)
    answer = going_page(request, "Going to the login", address)
    session.end_session(request, answer)
    grant = fields.get("grant", "")[:MAX_GRANT]
    session.set_attempt(request, answer, secret=attempt.secret, next=destination, grant=grant)
    return answer


@router.get("/login/callback")
async def get_callback(request: Request) -> Response:
    """Opens a new session for the person with whom the identity provider sends the browser back."""
    registry: Registry = request.app.state.registry
    logins.login_of(registry)
    place = login_place(request, "provider")
    begun = session.attempt(request)
    destination = session.next_page(begun.get("next"))
    try:
        pairs = request.query_params.multi_items()
        if len(dict(pairs)) < len(pairs):
            raise Unauthenticated("the provider's answer says something twice", "log in again")
        attempt = Attempt(begun.get("secret") or new_secret())  # a new one fits no answer
        complete = partial(
            logins.complete,
            registry,
            attempt,
            dict(pairs),
            begun.get("grant", ""),
            before_asking=partial(demand_few, registry, place),
        )
        result = await _in_turn(request, complete)
        registry.memory.drop(place)
    except TooMany:
        raise
    except CacheSvcError as error:
        return _failed(request, destination, error)
    if isinstance(result, logins.Choice):
        answer = choice_page(request, destination, result.name, result.grants)
    else:
        answer = going_page(request, "Logged in", destination)
        session.set_session(request, answer, result.secret, result.seconds)
    session.end_attempt(request, answer)
    return answer


async def _in_turn(request: Request, call: Callable[[], T]) -> T:
    limiter: anyio.CapacityLimiter = request.app.state.logins
    if limiter.statistics().tasks_waiting >= MAX_WAITING:
        raise TooMany("too many logins at once", "try again in some seconds")
    return await to_thread.run_sync(call, limiter=limiter)


def _failed(request: Request, destination: str, error: CacheSvcError) -> Response:
    """Returns the login page with the error: there a token opens a session too."""
    if error.status >= 500:
        _log.error("%s %s [%s]: %s", request.method, request.url.path, request.state.request_id, error)
    answer = login_page(request, destination, error)
    session.end_attempt(request, answer)
    return answer
