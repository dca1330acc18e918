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

from cachesvc.domain.access import ANY, Action, Role, Token, demand
from cachesvc.registry import publish
from cachesvc_client.wire.errors import TooLarge, Unauthenticated
from cachesvc_client.wire.names import Lane, Namespace

from .declared import MAX_COMMIT_BYTES, Declared, Scope, Share, declaration
from .pace import Paced
from .sending import PIECE_BYTES, SharedAnswer, StreamedAnswer
from .shares import Bounds, Owner, Shares

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

KNOWN = "cachesvc.known"
"""Key in a request's scope of the function that a connection is told by that a token was shown on it. A
connection that never shows one is the first to be ended."""

PLACES = Bounds(token=8, lane=8, lanes=12, namespace=16, process=32)
"""Bodies that threads store at once."""
MIB = 1 << 20
SMALL = Bounds(token=8 * MIB, lane=8 * MIB, lanes=12 * MIB, namespace=16 * MIB, process=32 * MIB)
"""Bytes of small bodies in memory at once. Large ones have bounds of their own, so that they keep no resolve
waiting."""
LARGE = Bounds(
    token=MAX_COMMIT_BYTES,
    lane=MAX_COMMIT_BYTES,
    lanes=MAX_COMMIT_BYTES + 2 * MIB,
    namespace=MAX_COMMIT_BYTES + 6 * MIB,
    process=MAX_COMMIT_BYTES + 26 * MIB,
)
"""Bytes of other bodies: the largest one fits, beside some of others."""
ANSWERS = Bounds(
    token=MAX_COMMIT_BYTES,
    lane=MAX_COMMIT_BYTES,
    lanes=MAX_COMMIT_BYTES + 2 * MIB,
    namespace=MAX_COMMIT_BYTES + 26 * MIB,
    process=MAX_COMMIT_BYTES + 74 * MIB,
)
"""Bytes of answers that are being sent and are not small: the largest one fits, beside some of others."""
WAITING_ANSWERS = 4000
"""Requests that wait until their answer has its share: a fleet that starts at once has one token."""
OPEN = Bounds(token=4 * MIB, lane=0, lanes=0, namespace=16 * MIB, process=16 * MIB)
"""Bytes of such answers to strangers, by address: they use nothing of the others."""
PIECES = Bounds(token=16 * MIB, lane=8 * MIB, lanes=16 * MIB, namespace=32 * MIB, process=64 * MIB)
"""Bytes of the large pieces of packs, which who reads fast gets while there is room."""
TINY_BYTES = 8 << 10
"""Bytes up to which a body waits for no share: the requests that one token may have under way bound those."""
LARGE_BYTES = 256 << 10
"""Bytes above which a body is large."""
TURN_BYTES = 2 * MIB
"""Bytes of a body above which it waits until no other such body is parsed: text takes several times its
bytes then."""


class Door:
    """What the bodies of all requests take of one process."""

    def __init__(self) -> None:
        self._places, self._small, self._large = Shares(PLACES), Shares(SMALL), Shares(LARGE)
        self._answers, self._pieces = Shares(ANSWERS, WAITING_ANSWERS, WAITING_ANSWERS // 2), Shares(PIECES)
        self._open = Shares(OPEN)
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
            if body.share is Share.memory and amount:
                admitted._body = await paced.read()
                if amount > TURN_BYTES:
                    await stack.enter_async_context(self._turn)
            yield admitted

    async def reserve(self, request: Request, owner: Owner, size: int) -> None:
        """Wait for the share of the answer to a request, before that is made. Raise ``TooMany``."""
        held = request.state.held = AsyncExitStack()
        await held.enter_async_context(self._answers.hold(owner, size))

    def share_answer(self, request: Request, response: Response, owner: Owner | None) -> Response:
        """Return what sends a response: one that is not small has a share until it is sent, and waits for
        it if it has none yet. ``owner``: ``None`` for a request without a token."""
        if owner is None:
            pool, owner = self._open, Owner(request.client.host if request.client else "")
        else:
            pool = self._answers
        if isinstance(response, StreamedAnswer):
            response.shares, response.owner = self._pieces, owner
            return response
        size = len(getattr(response, "body", b""))
        share = getattr(request.state, "held", None)
        if share is None and size <= PIECE_BYTES:
            return response
        share = share or pool.hold(owner, size)
        return SharedAnswer(response, share, partial(pool.presses, owner))


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
            async with door.admit(request, declared, owner) as admitted:
                try:
                    response = await inner(admitted)
                except BaseException:
                    await _held(request).aclose()
                    raise
            return door.share_answer(request, response, owner)

        return handler

    async def identify(self, request: Request) -> Token:  # noqa: ARG002 - of the classes below
        """Return who asks, from the head of the request. Raise ``Unauthenticated``."""
        raise Unauthenticated("this route takes no token")

    def shortcut(self, inner: Handler) -> Handler:
        """Return the handler of requests that were let in: ``inner``, or one that may answer without it."""
        return inner


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
