"""Write what the two databases spell differently, and run statements on the driver's own cursor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, SQLModel

from cachesvc.domain.access import ANY


class Rows:
    """Queries and changes of rows in one transaction, which its caller begins and ends."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def _run(self, statement: Any, values: Any = None) -> Any:
        """Run a statement. Its result is ``Any``: types of rows would not tell one column from another."""
        return self._session.connection().execute(statement, values)

    def _change(self, statement: sa.Update | sa.Delete) -> int:
        return run_change(self._session, statement)


def within(query: Any, column: Any, namespace: str) -> Any:
    """Return the query for the rows of one namespace by a column; for ``*`` as it is."""
    return query if namespace == ANY else query.where(column == namespace)


def insert_unless_there(session: Session, kind: type[SQLModel], **row: object) -> bool:
    """Inserts a row unless there is one with its key, so that no concurrent transaction fails. Returns
    whether it was inserted.

    ``row``: a value for each column that must have one; the others are NULL.
    """
    session.flush()
    connection = session.connection()
    return bool(run_on_driver(connection, _insert(kind, connection.dialect.name), row).rowcount)


@functools.cache
def _insert(kind: type[SQLModel], dialect: str) -> Any:
    """Builds the statement, once: a commit runs three of them."""
    return _insert_of(kind, dialect).on_conflict_do_nothing()


def insert_new(session: Session, kind: type[SQLModel], rows: Sequence[Mapping[str, object]]) -> None:
    """Inserts those of the rows whose key is not there."""
    if rows:
        session.connection().execute(upsert(session, kind).on_conflict_do_nothing(), rows)


def upsert(session: Session, kind: type[SQLModel]) -> Any:
    """Returns an ``INSERT`` that can say what is to be done ``ON CONFLICT``."""
    return _insert_of(kind, session.connection().dialect.name)


def _insert_of(kind: Any, dialect: str) -> Any:
    return (postgresql.insert if dialect == "postgresql" else sqlite.insert)(kind.__table__)


def take_turns(session: Session) -> None:
    """Waits for the transactions that called this earlier. SQLite has one writer at a time anyway."""
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        # The number is any constant; `engine` has another one.
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(7236456)"))


def may_delete(session: Session, table: str) -> bool:
    """Return whether this role may delete rows of a table. SQLite has no roles."""
    connection = session.connection()
    if connection.dialect.name != "postgresql":
        return True
    return bool(connection.scalar(sa.text("SELECT has_table_privilege(:table, 'DELETE')"), {"table": table}))


def run_change(session: Session, statement: sa.Update | sa.Delete) -> int:
    """Runs ``statement`` and returns how many rows it changed."""
    session.flush()
    return session.connection().execute(statement).rowcount


def run_on_driver(connection: sa.Connection, statement: sa.Executable, values: Mapping[str, Any]) -> Any:
    """Runs a statement on the driver's own cursor and returns the cursor.

    SQLAlchemy's work around a statement, and for each row, takes longer than most statements do. The
    statement is compiled once. ``values`` has a value for each name of the statement (an ``INSERT``: for each
    column), as SQLAlchemy's types have them; rows are the driver's. Raises what SQLAlchemy raises.
    """
    run = _compile(statement, connection.dialect, tuple(values))(values)
    with _errors_of_sqlalchemy(connection, run[0]):
        return _cursor(connection).execute(*run)


def fetch_each_on_driver(
    connection: sa.Connection, statement: sa.Executable, values_of_each: Sequence[Mapping[str, Any]]
) -> list[list[Any]]:
    """Runs a statement as ``run_on_driver`` does, once for each mapping, and returns the rows of each run;
    PostgreSQL in one round trip."""
    dialect: Any = connection.dialect
    runs = [_compile(statement, dialect, tuple(values))(values) for values in values_of_each]
    with _errors_of_sqlalchemy(connection, runs[0][0] if runs else None):
        if dialect.name != "postgresql":
            # Each run reads its rows before the next one begins: SQLite's driver parses a statement anew that
            # another cursor still reads, which took twice as long as the reading.
            return [_cursor(connection).execute(*run).fetchall() for run in runs]
        driver: Any = connection.connection
        with driver.pipeline() if len(runs) > 1 else nullcontext():
            cursors = [_cursor(connection).execute(*run) for run in runs]
        return [cursor.fetchall() for cursor in cursors]


def _cursor(connection: sa.Connection) -> Any:
    driver: Any = connection.connection
    return driver.cursor(binary=True) if connection.dialect.name == "postgresql" else driver.cursor()


@contextmanager
def _errors_of_sqlalchemy(connection: sa.Connection, text: str | None) -> Iterator[None]:
    """Raises SQLAlchemy's error for the driver's, and drops a connection that is lost."""
    dialect: Any = connection.dialect
    try:
        yield
    except dialect.loaded_dbapi.Error as error:
        driver: Any = connection.connection
        if dialect.is_disconnect(error, driver.dbapi_connection, None):
            connection.invalidate(error)
        raise sa.exc.DBAPIError.instance(
            text, None, error, dialect.loaded_dbapi.Error, dialect=dialect
        ) from error


@functools.lru_cache(maxsize=64)
def _compile(
    statement: Any, dialect: sa.Dialect, names: tuple[str, ...]
) -> Callable[[Mapping[str, Any]], tuple[str, Any]]:
    """Returns the function that makes text and parameters of a run from its values, as the driver takes
    them."""
    columns = names if isinstance(statement, sa.Insert) else None
    compiled = statement.compile(
        dialect=dialect, column_keys=columns, compile_kwargs={"render_postcompile": True}
    )
    text, fixed, order = str(compiled), dict(compiled.params), compiled.positiontup
    types = {name: bind.type.dialect_impl(dialect) for bind, name in compiled.bind_names.items()}
    encoders = {name: encode for name, kind in types.items() if (encode := kind.bind_processor(dialect))}

    def text_and_parameters(values: Mapping[str, Any]) -> tuple[str, Any]:
        parameters = {**fixed, **values}
        for name, encode in encoders.items():
            parameters[name] = encode(parameters[name])
        return text, parameters if order is None else [parameters[name] for name in order]

    return text_and_parameters
