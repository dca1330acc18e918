"""Read arguments and options; a wrong one is the user's error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.names import Name, Namespace

T = TypeVar("T")


RevisionId = Annotated[str, typer.Argument(help="A revision's digest, or 4 or more of its first hex digits.")]
WebhookId = Annotated[str, typer.Argument(help="The receiver's id, of webhooks list.")]
EntryId = Annotated[str, typer.Argument(help="An entry's digest, or 4 or more of its first hex digits.")]


def begins_entry(text: str) -> bool:
    """Return whether a text is the digest of an entry, or begins one."""
    return re.fullmatch(r"(sha256:)?[0-9a-fA-F]{4,64}", text) is not None


def examples(*lines: str) -> str:
    """Return the examples of a command, for its ``epilog``."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def parse_option(build: Callable[[], T], option: str = "") -> T:
    """Return what ``build`` makes of an option. A ``ValueError`` of ``build`` becomes ``InvalidRequest``, and
    names the option if the caller does."""
    try:
        return build()
    except ValueError as error:
        raise InvalidRequest(f"{option}: {error}" if option else str(error)) from None


def parse_namespace(text: str) -> Namespace:
    """Returns ``text`` as a namespace. Raises ``InvalidRequest`` that says what is allowed."""
    return parse_option(lambda: Namespace(text))


def parse_name(text: str) -> Name:
    """Return ``text`` as ``namespace/name[:tag]``. Raises ``InvalidRequest`` that says what is allowed."""
    return parse_option(lambda: Name.parse(text))
