"""What the two databases spell differently."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, SQLModel


def insert_unless_there(session: Session, kind: type[SQLModel], **row: object) -> None:
    """``INSERT … ON CONFLICT DO NOTHING``: whoever is first wins, and nobody's transaction fails. ``row``:
    a value for each column that must have one; the others are NULL."""
    session.flush()
    connection = session.connection()
    connection.execute(_insert(kind, connection.dialect.name), row)


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
