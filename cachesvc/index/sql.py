"""What the two databases spell differently, and statements on the driver's own cursor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, SQLModel


def insert_unless_there(session: Session, kind: type[SQLModel], **row: object) -> None:
    """``INSERT … ON CONFLICT DO NOTHING``: whoever is first wins, and nobody's transaction fails. ``row``:
    a value for each column that must have one; the others are NULL."""
    session.flush()
    connection = session.connection()
    driven(connection, _insert(kind, connection.dialect.name), row)


@functools.cache
def _insert(kind: type[SQLModel], dialect: str) -> Any:
    """Built once: a commit makes three of them."""
    return upsert(kind.__table__, dialect).on_conflict_do_nothing()  # type: ignore[attr-defined]


def upsert(table: Any, dialect: str) -> Any:
    """An ``INSERT`` that can say what is to be done ``ON CONFLICT``."""
    return (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table)


def take_turns(session: Session) -> None:
    """Waits for the transactions that called this before. SQLite has one writer at a time anyway."""
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        # The number is any constant; `engine` has another one.
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(7236456)"))


def changed(session: Session, statement: sa.Update | sa.Delete) -> int:
    """Runs it and says how many rows it touched."""
    session.flush()
    return session.connection().execute(statement).rowcount


def driven(connection: sa.Connection, statement: sa.Executable, asked: Mapping[str, Any]) -> Any:
    """The driver's cursor, after the statement that was built once and has a value for each of its names (an
    ``INSERT``: for each column). See :func:`driven_each`."""
    [cursor] = driven_each(connection, statement, [asked])
    return cursor


def driven_each(
    connection: sa.Connection, statement: sa.Executable, asked: Sequence[Mapping[str, Any]]
) -> list[Any]:
    """A cursor of the driver for each: what SQLAlchemy makes around a statement, and of each row, takes
    longer than most statements do. PostgreSQL is asked for all in one round trip. Values go in as
    SQLAlchemy's types have them; what comes out is the driver's. Raises what SQLAlchemy raises."""
    dialect: Any = connection.dialect
    made = [_compiled(statement, dialect, tuple(values))(values) for values in asked]
    driver: Any = connection.connection
    try:
        if dialect.name != "postgresql":
            return [driver.cursor().execute(*one) for one in made]
        with driver.pipeline() if len(made) > 1 else nullcontext():
            return [driver.cursor(binary=True).execute(*one) for one in made]
    except dialect.loaded_dbapi.Error as error:
        if dialect.is_disconnect(error, driver.dbapi_connection, None):
            connection.invalidate(error)
        raise sa.exc.DBAPIError.instance(
            made[0][0], None, error, dialect.loaded_dbapi.Error, dialect=dialect
        ) from error


@functools.lru_cache(maxsize=64)
def _compiled(
    statement: Any, dialect: sa.Dialect, names: tuple[str, ...]
) -> Callable[[Mapping[str, Any]], tuple[str, Any]]:
    """Makes the text and the parameters of what is asked, as the driver takes them."""
    columns = names if isinstance(statement, sa.Insert) else None
    made = statement.compile(
        dialect=dialect, column_keys=columns, compile_kwargs={"render_postcompile": True}
    )
    text, fixed, order = str(made), dict(made.params), made.positiontup
    kinds = {name: bind.type.dialect_impl(dialect) for bind, name in made.bind_names.items()}
    forms = {name: form for name, kind in kinds.items() if (form := kind.bind_processor(dialect))}

    def asked(values: Mapping[str, Any]) -> tuple[str, Any]:
        given = {**fixed, **values}
        for name, form in forms.items():
            given[name] = form(given[name])
        return text, given if order is None else [given[name] for name in order]

    return asked
