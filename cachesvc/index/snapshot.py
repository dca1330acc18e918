"""Copy the rows of an index out of a database, in one consistent view, and into an empty one of either kind.

Rows are JSON objects by column. What cannot outlive a move stays out: sessions of the web page, uploads under
way, claims, tokens that a mirror has confirmed, and objects that no revision names.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic.migration import MigrationContext

from cachesvc_client.wire.errors import Corrupt, InvalidRequest

from .tables import ObjectRow, RevisionRow, metadata
from .unit import Index, Unit

_LEFT_OUT = frozenset({"sessions", "uploads", "claims", "upstream_tokens"})
"""Tables whose rows a copy does not hold."""
_BATCH = 500
"""Rows of one insertion."""
TABLES = tuple(table.name for table in metadata.sorted_tables if table.name not in _LEFT_OUT)
"""Names of the tables of a copy, in an order in which each row comes after those that it refers to."""


class Snapshot:
    """Reads an index as it was at one moment. ``schema``: the step of its newest migration."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.schema = MigrationContext.configure(connection).get_current_revision() or ""

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of a table."""
        source = metadata.tables[table]
        query = sa.select(source)
        if table == ObjectRow.__tablename__:
            revisions = metadata.tables[str(RevisionRow.__tablename__)]
            query = query.where(sa.exists().where(revisions.c.pack_key == source.c.key))
        for row in self._connection.execution_options(yield_per=_BATCH).execute(query):
            yield {column.name: _encoded(value) for column, value in zip(source.columns, row, strict=True)}


@contextmanager
def snapshot(index: Index) -> Iterator[Snapshot]:
    """Reads in one transaction that waits for no writer and holds up none."""
    with index.one_view() as connection:
        yield Snapshot(connection)


def rows_in(index: Index) -> int:
    """Counts the rows of all tables: an index without any is empty."""
    with index.one_view() as connection:
        counts = (sa.select(sa.func.count()).select_from(table) for table in metadata.sorted_tables)
        return sum(int(connection.execute(query).scalar() or 0) for query in counts)


@contextmanager
def filling(index: Index, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[Unit]:
    """Fills an empty index in one transaction, and yields it for what the caller adds: all is committed at
    the end of the block, or nothing. Raises ``InvalidRequest`` if the index is not empty, ``Corrupt`` for
    rows that do not belong together."""
    if rows_in(index):
        raise InvalidRequest("the index is not empty", "restore into a new registry")
    with index.write() as unit, _own_rows():
        connection = unit.connection
        for name in TABLES:
            _insert(connection, metadata.tables[name], rows[name])
        if connection.dialect.name == "postgresql":
            _continue_numbers(connection)
        yield unit


@contextmanager
def _own_rows() -> Iterator[None]:
    try:
        yield
    except (sa.exc.IntegrityError, sa.exc.StatementError) as error:
        if isinstance(error, sa.exc.OperationalError):
            raise
        raise Corrupt(f"the rows of the index do not belong together: {str(error.orig)[:200]}") from None


def _insert(connection: sa.Connection, table: sa.Table, rows: Iterable[Mapping[str, Any]]) -> None:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append({name: _decoded(table.columns[name], value) for name, value in row.items()})
        if len(batch) == _BATCH:
            connection.execute(sa.insert(table), batch)
            batch = []
    if batch:
        connection.execute(sa.insert(table), batch)


def _continue_numbers(connection: sa.Connection) -> None:
    """Lets PostgreSQL number new rows after those that were inserted with their numbers."""
    for table in metadata.sorted_tables:
        number = table.autoincrement_column
        if number is not None and table.name in TABLES:
            newest = sa.select(sa.func.coalesce(sa.func.max(number), 0) + 1).scalar_subquery()
            sequence = sa.func.pg_get_serial_sequence(table.name, number.name)
            connection.execute(sa.select(sa.func.setval(sequence, newest, False)))


def _encoded(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _decoded(column: sa.Column[Any], value: Any) -> Any:
    if isinstance(column.type, sa.LargeBinary) and value is not None:
        return base64.b64decode(value)
    return value
