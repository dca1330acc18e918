"""kill -9 at every step of an upgrade, then again: it is as if it had been done at once, and no row is lost.

The child dies before each statement, before each commit and after it, for n from 1 until it lives through.
"""

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
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from test_lifecycle_index import older_replica_writes

from cachesvc.index import engine
from cachesvc.index.engine import open_postgresql, open_sqlite, pending_postgresql, pending_sqlite
from cachesvc.index.tables import metadata
from tests.killed import was_killed


@dataclass
class Database:
    """One to be upgraded. ``postgresql``: its URL; else it is the file ``path``."""

    path: Path
    postgresql: str = ""

    def copied(self, number: int) -> Database:
        """Another one that is like it."""
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
        found = pending_postgresql(self.postgresql) if self.postgresql else pending_sqlite(self.path)
        return [step for step, _ in found]

    def fill(self, revision: str) -> None:
        """What a release of that schema left behind."""
        raw = self.raw()
        config = engine._alembic(Path(engine.__file__).parent / "migrations")
        with raw.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            older_replica_writes(connection, "before", namespace=True)
        raw.dispose()

    def rows(self) -> int:
        raw = self.raw()
        with raw.connect() as connection:
            count = connection.execute(sa.text("SELECT count(*) FROM revisions")).scalar()
        raw.dispose()
        return int(count or 0)

    def is_whole(self) -> None:
        """The newest schema, as the tables have it."""
        raw = self.raw()
        with raw.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []
        raw.dispose()
        assert self.pending() == []


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    url = request.getfixturevalue("database") if request.param == "postgresql" else ""
    return Database(tmp_path / "index.sqlite3", url)


@pytest.mark.parametrize("before", ["", "0001"], ids=["empty", "0001"])
def test_an_upgrade_killed_at_each_step(empty: Database, before: str) -> None:
    if before:
        empty.fill(before)
    pending = empty.pending()
    assert len(pending) >= 2
    for steps in range(1, 500):
        database = empty.copied(steps)
        died = _dies_at(steps, database)
        # Nothing of it, or all of it: there is no half-migrated database.
        assert database.pending() in (pending, [])
        database.open().close()
        database.is_whole()
        assert database.rows() == bool(before)
        if not died:
            break
    assert 20 < steps < 499


def test_an_upgrade_that_is_killed_does_not_stop_a_replica_that_waits_for_it(database: str) -> None:
    """Two start; the first dies in the midst, and the other, which waits longer than for other locks, does
    what it left."""
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
    assert len(pending_postgresql(database)) >= 3
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert second.wait(30) == 0
    assert pending_postgresql(database) == []


def test_a_database_that_was_half_migrated_by_hand_is_told(tmp_path: Path) -> None:
    """Statements of an upgrade without its version: what a copy of single tables makes."""
    path = tmp_path / "index.sqlite3"
    open_sqlite(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0002'")
    connection.close()
    with pytest.raises(engine.InvalidRequest) as caught:
        open_sqlite(path)
    said = str(caught.value)
    assert str(path) in said and "half-migrated" in said and "restore the backup" in said and "\n" not in said


def _dies_at(steps: int, database: Database) -> bool:
    def act() -> None:
        _fuse(steps, signal.SIGKILL)
        database.open().close()

    return was_killed(act)


def _fuse(steps: int, number: int) -> None:
    """This process gets the signal at its n-th step."""
    left = steps

    def step(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)

    for moment in ("before_cursor_execute", "commit"):
        sa.event.listen(sa.Engine, moment, step)
    sa.event.listen(sa.pool.Pool, "checkin", step)  # the commit is done
