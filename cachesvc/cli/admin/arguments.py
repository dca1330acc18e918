"""Read arguments and options; a wrong one is the user's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.names import Namespace

T = TypeVar("T")


def parse_option(build: Callable[[], T]) -> T:
    """Returns what ``build`` makes of an option. A ``ValueError`` of ``build`` becomes ``InvalidRequest``."""
    try:
        return build()
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def parse_namespace(text: str) -> Namespace:
    """Returns ``text`` as a namespace. Raises ``InvalidRequest`` that says what is allowed."""
    return parse_option(lambda: Namespace(text))
