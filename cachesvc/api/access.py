"""Bearer tokens. A request is authenticated before its body is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from cachesvc.domain.access import Token
from cachesvc.registry.context import Registry
from cachesvc.registry.tokens import authenticate, recognise
from cachesvc_client.wire.errors import TooMany, Unauthenticated

from .body import bounded

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

bearer = HTTPBearer(auto_error=False, description="A cachesvc token (`csv_…`).", scheme_name="token")


class Crowd:
    """The requests under way in this process, by token: one token must not take all of it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now: Counter[str] = Counter()

    def enter(self, token: Token) -> Callable[[], None]:
        """Counts a request in; what it answers counts it out, once. Raises ``TooMany``. For the event loop's
        thread alone."""
        name = token.token
        if self._now[name] >= self._most:
            raise TooMany(
                f"token {name}: more than {self._most} requests at once",
                "use a token for each job, or raise the setting token_requests",
            )
        self._now[name] += 1

        def leave() -> None:
            self._now[name] -= 1
            if not self._now[name]:
                del self._now[name]

        return leave


class TokenRoute(APIRoute):
    """A route that strangers cannot make read a body, and nobody one over its limit. ``remembers_tokens``:
    whether a token that was read from the index in the last 5 s is good enough."""

    remembers_tokens = True

    def get_route_handler(self) -> Handler:
        inner = self.shortened(super().get_route_handler())
        endpoint = self.endpoint

        async def handler(request: Request) -> Response:
            # Put there by who calls the application in its own process (``cachesvc admin --local``): nothing
            # that comes over a network reaches the scope's state.
            if isinstance(getattr(request.state, "token", None), Token):
                return await inner(bounded(request, endpoint))
            scheme, _, secret = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not secret.strip():
                raise Unauthenticated("no token", "send Authorization: Bearer csv_…, or: cachesvc login")
            registry: Registry = request.app.state.registry
            token = recognise(registry, secret.strip()) if self.remembers_tokens else None
            if token is None:
                look_up = partial(authenticate, registry, secret.strip(), remembered=self.remembers_tokens)
                token = await to_thread.run_sync(look_up)
            request.state.token = token
            request.state.leave = request.app.state.crowd.enter(token)
            return await inner(bounded(request, endpoint))

        return handler

    def shortened(self, inner: Handler) -> Handler:
        """What answers a request of a known token: ``inner``, or something that may do without."""
        return inner


class AdminRoute(TokenRoute):
    """A route of operators: each request reads the token from the index, so that a revocation holds at
    once."""

    remembers_tokens = False


async def _registry(request: Request) -> Registry:
    registry: Registry = request.app.state.registry
    return registry


async def _token(request: Request) -> Token:
    token: Token = request.state.token
    return token


TheRegistry = Annotated[Registry, Depends(_registry)]
TheToken = Annotated[Token, Depends(_token)]
SECURED = [Security(bearer)]
