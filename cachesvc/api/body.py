"""How large a request's body may be: a number that stands beside each route that differs from the others."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from fastapi import Request

from cachesvc_client.wire.errors import TooLarge

MAX_BODY_BYTES = 4 << 20
"""The limit of a route that states none."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_ATTRIBUTE = "max_body_bytes"


def max_body(size: int | None) -> Callable[[Endpoint], Endpoint]:
    """Marks an endpoint: its body has at most ``size`` bytes, or, with ``None``, as many as the endpoint
    itself allows while it streams them."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ATTRIBUTE, size)
        return endpoint

    return mark


def bounded(request: Request, endpoint: Callable[..., Any]) -> Request:
    """The request, whose body is refused over the endpoint's limit before it is held in memory.

    Raises ``TooLarge`` at once if the announced length is over it.
    """
    limit: int | None = getattr(endpoint, _ATTRIBUTE, MAX_BODY_BYTES)
    if limit is None:
        return request
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limit:
        raise TooLarge(f"a body of {length} bytes; at most {limit} are allowed here")
    seen = 0

    async def counted() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await request.receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise TooLarge(f"a body of more than the {limit} bytes that are allowed here")
        return message

    return Request(request.scope, counted)
