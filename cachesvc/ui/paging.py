"""Cut lists into pages, and make the addresses of other pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from fastapi import Query, Request

Row = TypeVar("Row")

ROWS = 50
"""Rows of a page."""
Number = Annotated[int, Query(ge=0, le=1_000_000)]
"""Type of the number of a row from which a page begins."""


FROM = Query(alias="from")
"""Names the field of the address that has this number."""


class Part(NamedTuple, Generic[Row]):
    """The rows of one page of a list, with the addresses of its first page (``None`` on that page) and of the
    next one (``None`` on the last)."""

    rows: Sequence[Row]
    first: str | None
    next: str | None


def part(
    request: Request, rows: Sequence[Row], begin: int, field: str = "from", most: int = ROWS
) -> Part[Row]:
    """Returns the page of ``rows`` that begins at row ``begin``, which stands in ``field`` of the address."""
    end = begin + most
    return Part(
        rows[begin:end],
        address(request, **{field: None}) if begin else None,
        address(request, **{field: end}) if end < len(rows) else None,
    )


def cursor_addresses(request: Request, cursor: str | None, following: str | None) -> dict[str, str | None]:
    """Returns the addresses of the first page and of the next one, for a list that has a cursor."""
    return {
        "first": address(request, cursor=None) if cursor else None,
        "next": address(request, cursor=following) if following else None,
    }


def address(request: Request, **changed: object) -> str:
    """Returns the address of this page with other fields; ``None`` leaves a field out. What was done is said
    once."""
    fields = {**dict(request.query_params), "done": None, **changed}
    query = urlencode({name: value for name, value in fields.items() if value not in (None, "")})
    return f"{request.url.path}?{query}" if query else request.url.path
