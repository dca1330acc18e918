"""Limit the size of request bodies; :func:`max_body` beside a route sets a limit of its own."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from fastapi import Request

from cachesvc_client.wire.errors import TooLarge

MAX_BODY_BYTES = 4 << 20
"""Bytes of a body, at most, for a route without a limit of its own."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_ATTRIBUTE = "max_body_bytes"


def max_body(size: int | None) -> Callable[[Endpoint], Endpoint]:
    """Sets an endpoint's limit to ``size`` bytes. ``None``: the endpoint streams the body and limits it
    itself."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ATTRIBUTE, size)
        return endpoint

    return mark


def limit_body(request: Request, endpoint: Callable[..., Any]) -> Request:
    """Returns the request with a body that raises ``TooLarge`` past the endpoint's limit, before it is in
    memory.

    Raises ``TooLarge`` at once if the stated length exceeds the limit.
    """
    limit: int | None = getattr(endpoint, _ATTRIBUTE, MAX_BODY_BYTES)
    if limit is None:
        return request
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limit:
        raise TooLarge(f"a body of {length} bytes; at most {limit} are allowed here")
    received = 0

    async def receive() -> MutableMapping[str, Any]:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise TooLarge(f"a body of more than the {limit} bytes that are allowed here")
        return message

    return Request(request.scope, receive)
