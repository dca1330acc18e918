"""Test kill -9 at every step of an upgrade: a second run ends as one run would, and no row is lost.

The child dies before each statement, before each commit and after it, for n from 1 until it lives through."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from cachesvc.index import engine
from cachesvc.index.engine import open_postgresql, open_sqlite, pending_postgresql, pending_sqlite
from cachesvc.index.tables import metadata
from tests.killed import was_killed


@dataclass
class Database:
    """Is a database to upgrade. ``postgresql``: its URL; without one the database is the file ``path``."""

    path: Path
    postgresql: str = ""

    def duplicate(self, number: int) -> Database:
        """Return a copy of this database."""
        if not self.postgresql:
            copy = Database(self.path.with_suffix(f".{number}"))
            if self.path.exists():
                shutil.copy(self.path, copy.path)
            return copy
        server, _, name = self.postgresql.rpartition("/")
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}_{number} TEMPLATE {name}")
        return Database(self.path, f"{self.postgresql}_{number}")

    def raw(self) -> sa.Engine:
        return (
            engine._postgresql(self.postgresql)
            if self.postgresql
            else sa.create_engine(f"sqlite:///{self.path}")
        )

    def open(self) -> Any:
        return open_postgresql(self.postgresql) if self.postgresql else open_sqlite(self.path)

    def pending(self) -> list[str]:
        steps = pending_postgresql(self.postgresql) if self.postgresql else pending_sqlite(self.path)
        return [step for step, _ in steps]

    def is_whole(self) -> None:
        """Assert that the tables have the newest schema."""
        raw = self.raw()
        with raw.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []
        raw.dispose()
        assert self.pending() == []


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.services, pytest.mark.long])])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    url = request.getfixturevalue("database") if request.param == "postgresql" else ""
    return Database(tmp_path / "index.sqlite3", url)


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.long), 4])
def test_an_upgrade_killed_at_each_step(empty: Database, stride: int) -> None:
    """`make test` kills it at each fourth step."""
    pending = empty.pending()
    assert pending
    for steps in range(1, 500, stride):
        database = empty.duplicate(steps)
        died = is_killed_at(steps, database)
        # The upgrade was applied completely or not at all: no database is half migrated.
        assert database.pending() in (pending, [])
        database.open().close()
        database.is_whole()
        if not died:
            break
    assert 20 < steps < 499


def test_a_killed_upgrade_does_not_stop_a_replica_that_waits_for_it(database: str) -> None:
    """Two replicas start. The first dies during the upgrade; the other waits longer than for other locks, and
    does the rest."""
    first = os.fork()
    if first == 0:
        _fuse(15, signal.SIGSTOP)
        open_postgresql(database).close()
        os._exit(0)
    assert os.WIFSTOPPED(os.waitpid(first, os.WUNTRACED)[1])
    code = f"from cachesvc.index import engine; engine.LOCK_SECONDS = 1; engine.open_postgresql({database!r})"
    second = subprocess.Popen([sys.executable, "-c", code])
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(6)
    assert pending_postgresql(database)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert second.wait(30) == 0
    assert pending_postgresql(database) == []


def test_a_database_that_was_half_migrated_by_hand_is_reported(tmp_path: Path) -> None:
    """Statements of an upgrade ran without its version, as in a copy of single tables."""
    path = tmp_path / "index.sqlite3"
    open_sqlite(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM alembic_version")
    connection.close()
    with pytest.raises(engine.InvalidRequest) as error:
        open_sqlite(path)
    message = str(error.value)
    assert (
        str(path) in message
        and "half-migrated" in message
        and "restore the backup" in message
        and "\n" not in message
    )


def is_killed_at(steps: int, database: Database) -> bool:
    def act() -> None:
        _fuse(steps, signal.SIGKILL)
        database.open().close()

    return was_killed(act)


def _fuse(steps: int, number: int) -> None:
    """Kill this process at its n-th step."""
    remaining = steps

    def step(*_: object) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), number)

    for moment in ("before_cursor_execute", "commit"):
        sa.event.listen(sa.Engine, moment, step)
    sa.event.listen(sa.pool.Pool, "checkin", step)  # The commit is done.
