"""What the two databases spell differently."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, SQLModel


def insert_unless_there(session: Session, row: SQLModel) -> None:
    """``INSERT … ON CONFLICT DO NOTHING``: whoever is first wins, and nobody's transaction fails."""
    table: Any = type(row).__table__  # type: ignore[attr-defined]
    session.flush()
    connection = session.connection()
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(make(table).values(row.model_dump()).on_conflict_do_nothing())


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
