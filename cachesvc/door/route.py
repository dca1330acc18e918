"""Let a request in: who asks is known, may do it, and has a share, before a byte of its body is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from cachesvc.domain.access import ANY, Action, Role, Token, demand
from cachesvc.registry import publish
from cachesvc_client.wire.errors import TooLarge, Unauthenticated
from cachesvc_client.wire.names import Lane, Namespace

from .declared import (
    ANSWERS,
    LARGE,
    MAKING,
    OPEN,
    PIECES,
    PLACES,
    SMALL,
    Declared,
    Scope,
    Share,
    declaration,
)
from .pace import Paced
from .sending import PIECE_BYTES, SharedAnswer, StreamedAnswer
from .shares import Owner, Shares

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

KNOWN = "cachesvc.known"
"""Key in a request's scope of the function that a connection is told by that a token was shown on it. A
connection that never shows one is the first to be ended."""

TINY_BYTES = 8 << 10
"""Bytes up to which a body waits for no share: the requests that one token may have under way bound those."""
LARGE_BYTES = 256 << 10
"""Bytes above which a body is large."""
TURN_BYTES = 2 << 20
"""Bytes of a body above which it waits until no other such body is parsed: text takes several times its
bytes then."""


class Door:
    """What the bodies of all requests take of one process."""

    def __init__(self) -> None:
        self._places, self._small, self._large = Shares(PLACES), Shares(SMALL), Shares(LARGE)
        self._answers, self._making = Shares.of_fleet(ANSWERS), Shares.of_fleet(MAKING)
        self._open, self._pieces = Shares(OPEN), Shares(PIECES)
        self._turn = anyio.Lock()

    @asynccontextmanager
    async def admit(
        self, request: Request, declared: Declared, owner: Owner | None
    ) -> AsyncIterator[Request]:
        """Yield the request with its body: read as a whole, or as it comes where a thread stores it.

        ``owner``: ``None`` for a request without a token. Its body is small, and its connection is ended
        before all others.
        """
        body = declared.body
        amount = announced(request, body.size)
        memory = self._small if amount <= LARGE_BYTES else self._large
        pools = [(self._places, 1)] if body.share is not Share.memory else []
        if body.share is not Share.place and amount > TINY_BYTES:
            pools.append((memory, amount))
        async with AsyncExitStack() as stack:
            if owner is not None:
                for pool, share in pools:
                    await stack.enter_async_context(pool.hold(owner, share))

            def pressed() -> bool:
                return owner is not None and any(pool.presses(owner) for pool, _ in pools)

            paced = Paced(request.receive, body, pressed=pressed)
            admitted = Request(request.scope, paced)
            if body.share is Share.memory and (amount or declared.is_made):
                admitted._body = await paced.read()
                if amount > TURN_BYTES:
                    await stack.enter_async_context(self._turn)
            yield admitted

    @asynccontextmanager
    async def make(self, request: Request, declared: Declared, owner: Owner | None) -> AsyncIterator[None]:
        """Keep a place for an answer of the route until it is made and has its share. Raise ``TooMany``, and
        ``ClientDisconnect`` where no one waits for it any more."""
        if not declared.is_made or owner is None:
            yield
            return
        async with self._making.hold(owner, 1):
            if await request.is_disconnected():
                raise ClientDisconnect
            yield

    async def reserve(self, request: Request, owner: Owner, size: int) -> None:
        """Wait for the share of the answer to a request, before that is made. Raise ``TooMany``."""
        await _hold(request, self._answers, owner, size)

    async def share_answer(self, request: Request, response: Response, owner: Owner | None) -> Response:
        """Return what sends a response: one that is not small has a share until it is sent, and waits for
        it if it has none yet. ``owner``: ``None`` for a request without a token. Raise ``TooMany``."""
        if owner is None:
            pool, owner = self._open, Owner(request.client.host if request.client else "")
        else:
            pool = self._answers
        if isinstance(response, StreamedAnswer):
            response.shares, response.owner = self._pieces, owner
            return response
        if not hasattr(request.state, "held"):
            size = len(getattr(response, "body", b""))
            if size <= PIECE_BYTES:
                return response
            await _hold(request, pool, owner, size)
        return SharedAnswer(response, request.state.held, partial(pool.presses, owner))


def announced(request: Request, most: int) -> int:
    """Return the bytes of a body that is to come, at most. Raise ``TooLarge`` above ``most``."""
    if "transfer-encoding" in request.headers:
        return most
    length = request.headers.get("content-length", "0")
    size = int(length) if length.isascii() and length.isdigit() else most
    if size > most:
        raise TooLarge(f"a body of {length[:20]} bytes; at most {most} are allowed here")
    return size


class DoorRoute(APIRoute):
    """A route whose request passes the door: it does what it declares in ``declared.ROUTES``."""

    def get_route_handler(self) -> Handler:
        inner = self.shortcut(super().get_route_handler())
        declared = declaration(self.methods or (), self.path)

        async def handler(request: Request) -> Response:
            owner = None
            if declared.role is not None:
                token = await self.identify(request)
                request.scope.get(KNOWN, _unheard)()
                owner = await _demand_right(request, token, declared.role, declared.scope)
            door: Door = request.app.state.door
            async with door.admit(request, declared, owner) as let_in, door.make(let_in, declared, owner):
                try:
                    return await door.share_answer(request, await inner(let_in), owner)
                except BaseException:
                    await _held(request).aclose()
                    raise

        return handler

    async def identify(self, request: Request) -> Token:  # noqa: ARG002 - of the classes below
        """Return who asks, from the head of the request. Raise ``Unauthenticated``."""
        raise Unauthenticated("this route takes no token")

    def shortcut(self, inner: Handler) -> Handler:
        """Return the handler of requests that were let in: ``inner``, or one that may answer without it."""
        return inner


async def _hold(request: Request, pool: Shares, owner: Owner, size: int) -> None:
    held = AsyncExitStack()
    await held.enter_async_context(pool.hold(owner, size))
    request.state.held = held


def _held(request: Request) -> AsyncExitStack:
    return getattr(request.state, "held", None) or AsyncExitStack()


def _unheard() -> None:
    """Tell no one: this request came over no connection of a server."""


async def _demand_right(request: Request, token: Token, role: Role, scope: Scope) -> Owner:
    """Raise ``Forbidden`` unless the token has the role where the head of the request says, and ``NotFound``
    for an upload that is not its own. Return whose body it will be."""
    action, registry = Action(role.value), request.app.state.registry
    if scope is Scope.every:
        demand(token, action, ANY)
    demand(token, action, token.namespace, token.lane)
    if scope is Scope.named:
        return _demand_named(request, token, action)
    # The uploads of a mirror are its upstream's, which judges them.
    if scope is Scope.upload and registry.mirror is None:
        find = publish.find_upload
        upload = await to_thread.run_sync(find, registry, token, request.path_params["upload"])
        return Owner(token.token, upload.namespace, upload.lane)
    return Owner.of(token)


def _demand_named(request: Request, token: Token, action: Action) -> Owner:
    namespace = request.path_params.get("namespace") or request.query_params.get("namespace", "")
    lane = request.query_params.get("lane") or (token.lane if action is Action.read else None)
    try:
        owner = Owner(token.token, Namespace(namespace), Lane(lane) if lane else None)
    except ValueError:  # the route says what is wrong with it
        return Owner.of(token)
    demand(token, action, owner.namespace, Lane(owner.lane) if owner.lane else None)
    return owner
