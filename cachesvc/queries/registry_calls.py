"""Call a registry as commands do: page by page, and with the beginning of a digest for the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from cachesvc.schema.entries import MAX_PAGE
from cachesvc_client.queries.names import Connection
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest

R = TypeVar("R")


def path_with_query(path: str, **query: object) -> str:
    """Return ``path`` with its query. Leave out what is ``None``, false or empty; repeat a list's name."""
    present = {name: value for name, value in query.items() if value not in (None, False, "", ())}
    texts = {name: "true" if value is True else value for name, value in present.items()}
    return f"{path}?{urlencode(texts, doseq=True)}" if texts else path


def all_pages(
    registry: Connection, path: str, page_type: Any, most: int | None, **query: object
) -> Iterator[Any]:
    """Yield the rows of a paged listing, at most ``most``; fetch a page when its first row is needed."""
    cursor: str | None = None
    left = most
    while left is None or left > 0:
        size = MAX_PAGE if left is None else min(left, MAX_PAGE)
        page = registry.call(
            "GET", path_with_query(path, cursor=cursor, limit=size, **query), None, page_type
        )
        yield from page.rows
        left = None if left is None else left - len(page.rows)
        cursor = page.next
        if cursor is None:
            return


def complete_digest(registry: Connection, kind: str, text: str) -> Digest:
    """Return the digest of the entry or revision that ``text`` names: a digest, or the beginning of one.

    Raises ``Corrupt`` if the registry completes the beginning to a digest that begins otherwise.
    """
    if Digest.pattern.fullmatch(text):
        return Digest(text)
    beginning = text.removeprefix("sha256:")
    if not (beginning.isalnum() and beginning.isascii()):
        raise InvalidRequest(
            f"{kind}: {text[:80]!r}", "give its digest, or 4 or more of its first hex digits"
        )
    digest = registry.call("GET", f"/v1/digests/{kind}/{beginning}", None, _Completed).digest
    if not digest.hex.startswith(beginning.lower()):
        raise Corrupt(f"the registry answered {digest} for the {kind} that begins with {beginning}")
    return digest


@dataclass(frozen=True, slots=True)
class _Completed:
    digest: Digest
