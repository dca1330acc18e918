"""Authenticate requests by bearer tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from cachesvc.domain.access import Token
from cachesvc.door.route import DoorRoute
from cachesvc.registry.access.tokens import authenticate, cached_token
from cachesvc.registry.context import Registry
from cachesvc_client.wire.errors import Forbidden, TooMany, Unauthenticated

bearer = HTTPBearer(auto_error=False, description="A cachesvc token (`csv_…`).", scheme_name="token")


class RequestCounts:
    """Counts the requests under way in this process by token, so that no token takes the whole process."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now: Counter[str] = Counter()

    def enter(self, token: Token) -> Callable[[], None]:
        """Counts a request, and returns the function that ends its count; call that once.

        Raises ``TooMany``. Only the event loop's thread may call this.
        """
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


def leave_count(request: Request) -> None:
    """Ends the count of a request that goes on to wait: it costs nothing meanwhile, and a fleet that waits
    with one token must be able to publish with it."""
    leave: Callable[[], None] = getattr(request.state, "leave", _count_left)
    request.state.leave = _count_left
    leave()


def _count_left() -> None:
    """Ends nothing: the request is not counted any more."""


class TokenRoute(DoorRoute):
    """A route for a token."""

    caches_tokens = True
    """Whether the route accepts a token that was read from the index up to 5 s ago."""

    async def identify(self, request: Request) -> Token:
        # ``cachesvc admin --local`` calls the application in its own process and puts the token there.
        # Nothing that comes over a network reaches the scope's state.
        present = getattr(request.state, "token", None)
        if isinstance(present, Token):
            return present
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Unauthenticated("no token", "set CACHESVC_TOKEN, or log in: cachesvc login URL")
        registry: Registry = request.app.state.registry
        token = cached_token(registry, secret.strip()) if self.caches_tokens else None
        if token is None:
            look_up = partial(authenticate, registry, secret.strip(), use_cache=self.caches_tokens)
            token = await to_thread.run_sync(look_up)
        request.state.token = token
        request.state.leave = request.app.state.request_counts.enter(token)
        return token


OWN_PATHS = ("/v1/tokens", "/v1/gc", "/v1/fsck", "/v1/webhooks", "/v1/revocations/plan")
"""Beginnings of the paths by which an operator changes what is a mirror's own."""


class AdminRoute(TokenRoute):
    """A route of operators: each request reads the token from the index, so that a revocation holds at
    once. A mirror refuses to change what it has from its upstream."""

    caches_tokens = False

    async def identify(self, request: Request) -> Token:
        token = await super().identify(request)
        own = (self.methods or set()) <= {"GET", "HEAD"} or self.path.startswith(OWN_PATHS)
        registry: Registry = request.app.state.registry
        if registry.mirror is not None and not own:
            raise Forbidden(f"this registry is a mirror of {registry.mirror.upstream.url}", "change it there")
        return token


async def _registry(request: Request) -> Registry:
    registry: Registry = request.app.state.registry
    return registry


async def _token(request: Request) -> Token:
    token: Token = request.state.token
    return token


TheRegistry = Annotated[Registry, Depends(_registry)]
TheToken = Annotated[Token, Depends(_token)]
SECURED = [Security(bearer)]
