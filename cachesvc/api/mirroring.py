"""What the application of a mirror does beside that of a registry: it looks regularly, waits for packs that
come, and sends writes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

import anyio
from anyio import to_thread
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from cachesvc.domain.access import Token
from cachesvc.door.route import Handler
from cachesvc.door.shares import Owner, Shares
from cachesvc.registry import download
from cachesvc.registry.context import Registry
from cachesvc.registry.download import Pack
from cachesvc.registry.mirror import packs, sync
from cachesvc.upstream.upstream import CALL_SECONDS
from cachesvc_client.http.exchange import Answer
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Forbidden, InvalidRequest, Unavailable
from cachesvc_client.wire.requests.claims import MAX_WAIT_SECONDS

from .access import TokenRoute
from .streams import receive

PULL_SECONDS = 8.0
"""Seconds that a reader waits for a pack that comes. A client gives a silent answer up after 10."""

_log = logging.getLogger("cachesvc.mirror")


class Looks:
    """Looks at the upstream every ``seconds`` seconds, and at once after a publication through this
    mirror."""

    def __init__(self, registry: Registry, seconds: float) -> None:
        self._registry, self._seconds = registry, seconds
        self._soon = anyio.Event()

    def soon(self) -> None:
        """Ends the pause before the next look."""
        self._soon.set()

    async def run(self) -> None:
        """Looks until it is cancelled. A look that fails is tried again after the pause; a new reason for it
        is logged."""
        thread, said = anyio.CapacityLimiter(1), ""
        while True:
            self._soon = anyio.Event()
            try:
                # Abandoned at shutdown: an upstream that is silent must not hold it up.
                await to_thread.run_sync(sync.look, self._registry, limiter=thread, abandon_on_cancel=True)
                if said:
                    _log.info("the upstream answers again")
                said = ""
            except CacheSvcError as error:
                if str(error) != said:
                    _log.warning("the mirror goes on with what it has: %s", error)
                said = str(error)
            with anyio.move_on_after(self._seconds):
                await self._soon.wait()


async def present_pack(registry: Registry, token: Token, revision: Digest, pack: Pack) -> Pack:
    """Returns the pack once it is in the mirror's store. However many readers wait, it comes once.

    Raises ``Unavailable`` after ``PULL_SECONDS``: the download goes on, and the client asks again.
    """
    pull = packs.start_pull(registry, revision)
    with anyio.move_on_after(PULL_SECONDS):
        await asyncio.shield(asyncio.wrap_future(pull))
        pack = await to_thread.run_sync(download.find_pack, registry, token, revision)
        if not packs.is_absent(pack):
            return pack
    raise Unavailable(
        f"the pack of revision {revision} is on its way to this mirror, {pack.size} bytes", "try again"
    )


class ForwardedRoute(TokenRoute):
    """A route that publishes or claims: a mirror sends the request to its upstream with the client's own
    token, and answers with the upstream's answer. The upstream decides what the token may do."""

    def shortcut(self, inner: Handler) -> Handler:
        async def handler(request: Request) -> Response:
            registry: Registry = request.app.state.registry
            return await (inner(request) if registry.mirror is None else _forward(registry, request))

        return handler


async def _forward(registry: Registry, request: Request) -> Response:
    mirror = registry.mirror
    assert mirror is not None
    secret = request.headers.get("authorization", "").partition(" ")[2].strip()
    if not secret:
        raise Forbidden("this registry is a mirror", f"publish at {mirror.upstream.url} with a token")
    path = request.scope.get("raw_path", request.url.path.encode()).decode("ascii", "replace")
    if request.url.query:
        path += f"?{request.url.query}"
    if request.method == "PUT" or request.scope["path"].endswith("/bundles"):
        answer = await _forward_bytes(mirror.upstream.forward, request, path, secret)
    else:
        body = await request.body()
        wait = _wait_of(body) if request.scope["path"].endswith("/claims") else 0.0
        state = request.app.state
        places: Shares = state.forwarded_waits if wait else state.forwards
        async with places.hold(Owner.of(request.state.token), 1):
            if await request.is_disconnected():
                raise ClientDisconnect
            answer = await to_thread.run_sync(
                mirror.upstream.forward,
                request.method,
                path,
                secret,
                body or None,
                None,
                CALL_SECONDS + wait,
                limiter=anyio.CapacityLimiter(1),
                abandon_on_cancel=True,
            )
    if request.scope["path"].endswith(("/commit", "/bundles")):
        looks: Looks | None = request.app.state.looks
        if looks is not None:
            looks.soon()
    return Response(answer.body, answer.status, media_type="application/json" if answer.body else None)


def _wait_of(body: bytes) -> float:
    """Returns the seconds for which a claim may wait at the upstream; 0 for a body that it will refuse."""
    try:
        request = codec.parse_json(body, limit=len(body), what="the claim")
    except ValueError:
        return 0.0
    wait = request.get("wait") if isinstance(request, dict) else None
    return min(max(wait, 0.0), MAX_WAIT_SECONDS) if isinstance(wait, int | float) else 0.0


async def _forward_bytes(forward: Callable[..., Answer], request: Request, path: str, secret: str) -> Answer:
    """Sends a body on as it comes, in chunks: memory does not grow with its size."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 19):
        raise InvalidRequest("Content-Length: missing", "a mirror sends a body on, and must know its length")

    def act(chunks: Iterator[bytes]) -> Answer:
        def body() -> Iterable[bytes]:
            return chunks

        return forward(request.method, path, secret, body, int(length), CALL_SECONDS)

    return await receive(request, act)
