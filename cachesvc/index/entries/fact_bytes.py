"""Bound what is read of many rows by the bytes of their facts: whoever publishes decides how many those are.

First the sizes are read, then the rows: a fingerprint of 64 KiB is half a megabyte once it is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlmodel import col

from ..tables import RevisionRow

_Key = TypeVar("_Key")
_BATCH = 500
"""Keys in one statement."""
_FACTS = (RevisionRow.fingerprint, RevisionRow.measured, RevisionRow.scopes)
FACT_BYTES: Any = sum(
    (sa.func.length(sa.cast(col(fact), sa.Text)) for fact in _FACTS[1:]),
    sa.func.length(sa.cast(col(_FACTS[0]), sa.Text)),
)
"""Selects the length of what a publisher states of a revision, as JSON."""


def first_within(rows: Iterable[tuple[_Key, int]], most: int) -> list[_Key]:
    """Return the keys of as many of the first rows as have ``most`` bytes together, and of at least one."""
    chosen: list[_Key] = []
    for key, size in rows:
        most -= size
        if most < 0 and chosen:
            break
        chosen.append(key)
    return chosen


def rows_of(connection: sa.Connection, query: Any, column: Any, keys: Sequence[Any]) -> list[Any]:
    """Return the rows of a query that have these keys in a column, in the order of the keys."""
    found: dict[Any, Any] = {}
    for start in range(0, len(keys), _BATCH):
        some = query.where(column.in_(keys[start : start + _BATCH]))
        found |= {getattr(row, column.key): row for row in connection.execute(some)}
    return [found[key] for key in keys if key in found]
