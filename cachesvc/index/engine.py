"""Open the database, SQLite in a folder or PostgreSQL, and bring its schema up to date."""

from __future__ import annotations

import importlib.resources
import logging
import os
import re
import select
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from cachesvc.reserve import Reserve
from cachesvc_client.wire.errors import InvalidRequest, ProtocolMismatch, Unavailable, printable

from . import poolers
from .rights import demand_rights
from .tables import metadata
from .unit import Index, message_of, own_error

_log = logging.getLogger("cachesvc.index")
_STEP = re.compile(r"(?:g(\d{1,4})-)?(\d{4})")
"""Name of a migration step. Steps of one generation only add; one that takes away what older code needs
begins the next (``g2-0010``)."""

CONNECTIONS = 16
"""Connections of a process, at most. They stay open: the pool's default closes those above five after each
use."""
IDLE_SECONDS = 1.0
"""Seconds of idleness after which a connection is tried before its use: the network may have failed."""
BUSY_SECONDS = 10
"""Seconds that a statement waits for SQLite's one writer."""
UPGRADE_SECONDS = 900
"""Seconds that one step of an upgrade may take, and that replicas which start meanwhile wait."""
LOCK_SECONDS = 10
"""Seconds that a statement waits for PostgreSQL's locks: behind a wait for a table, other statements wait
too."""

_LIMITS = {
    "statement_timeout": "30s",
    "lock_timeout": f"{LOCK_SECONDS}s",
    "idle_in_transaction_session_timeout": "60s",
}
"""Limits of a PostgreSQL transaction; PostgreSQL shows the first as it is written here."""

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs", "gpfs", "beegfs"}
    | {"fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph", "fuse.rclone"}
    | {"virtiofs", "vboxsf", "davfs", "fuse.davfs2", "ocfs2", "gfs2"}
)
"""Types of mounts on which SQLite's locks or its shared memory cannot be relied on
(https://www.sqlite.org/wal.html: "WAL does not work over a network filesystem")."""


def open_sqlite(path: Path, reserve: Reserve | None = None) -> Index:
    """Opens the index in the file ``path``, whose folder exists, and brings it to the newest schema.

    WAL, ``BEGIN IMMEDIATE`` for writes, full synchronisation: a committed transaction survives a loss of
    power. Raises ``InvalidRequest`` on a network file system, ``ProtocolMismatch`` for a newer schema.
    ``reserve``: of the file's disk.
    """
    refuse_network_filesystem(path.parent)
    if path.exists() and not os.access(path, os.W_OK):
        # SQLite itself would open it, and refuse the first write.
        raise Unavailable(f"the index {path} is read-only", "the file must be writable for this user")
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        connect_args={"timeout": BUSY_SECONDS},
        pool_size=CONNECTIONS,
        max_overflow=0,
    )
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return _opened(engine, reserve)


def view_sqlite(path: Path) -> Index:
    """Opens the index of a server that may be running, to read it: changes nothing, and waits for no one.

    Raises ``InvalidRequest`` unless its schema is the newest.
    """
    _require_current(pending_sqlite(path))
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_SECONDS}
    )
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return Index(engine)


def view_postgresql(url: str) -> Index:
    """Opens the index at ``postgresql://…`` to read it, as ``view_sqlite`` does."""
    _require_current(pending_postgresql(url))
    return Index(_postgresql(url))


_FOREIGN_PARAMETERS = {
    "pgbouncer": "name PostgreSQL itself, without it: a pooler in transaction mode mixes up statements",
    "schema": "remove it, and give the user that search_path: ALTER ROLE … SET search_path",
    "ssl": "write sslmode=require instead",
}
"""Hints for parameters that Prisma, JDBC or asyncpg have and libpq lacks."""


def _require_current(pending: list[tuple[str, str]]) -> None:
    if pending:
        raise InvalidRequest(
            f"the index lacks {len(pending)} migrations of this cachesvc",
            "cachesvc admin --local migrate --apply, or use the release that the server runs",
        )


def knows_schema(schema: str) -> bool:
    """Returns whether this code knows the migration ``schema``, and so the tables and columns up to it."""
    return schema in {step for step, _ in _steps(None)}


def holds_tables(url: str) -> bool:
    """Returns whether the database at ``postgresql://…`` has any table of cachesvc. Changes nothing."""
    engine = _postgresql(url)
    try:
        with _errors_at_opening(engine), engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision() is not None
    finally:
        engine.dispose()


def pending_sqlite(path: Path) -> list[tuple[str, str]]:
    """Returns (step, what it does) of the migrations that ``open_sqlite`` would run; changes nothing."""
    if not path.exists():
        return _steps(None)
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))
    return _pending(engine)


def pending_postgresql(url: str) -> list[tuple[str, str]]:
    """Returns (step, what it does) of the migrations that ``open_postgresql`` would run; changes nothing."""
    return _pending(_postgresql(url))


def _pending(engine: sa.Engine) -> list[tuple[str, str]]:
    try:
        with _errors_at_opening(engine), engine.connect() as connection:
            return _steps(MigrationContext.configure(connection).get_current_revision())
    finally:
        engine.dispose()


def _steps(current: str | None) -> list[tuple[str, str]]:
    with importlib.resources.as_file(importlib.resources.files(__package__) / "migrations") as folder:
        known = ScriptDirectory.from_config(_alembic(folder))
        if _is_current(known, current):
            return []
        steps = []
        for step in known.walk_revisions():
            if step.revision == current:
                break
            steps.append((step.revision, (step.doc or "").splitlines()[0]))
    return steps[::-1]


def open_postgresql(url: str) -> Index:
    """Opens the index at ``postgresql://…`` with the newest schema, or a newer release's that only adds to
    it.

    Raises ``Unavailable``, ``InvalidRequest``, ``ProtocolMismatch`` for a schema that this code cannot use.
    """
    return _opened(_postgresql(url))


def _postgresql(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url).set(drivername="postgresql+psycopg")
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidRequest("database: not a URL", "postgresql://user@host/name is expected") from None
    _refuse_foreign_parameters(parsed)
    engine = sa.create_engine(
        parsed, connect_args={"connect_timeout": 5}, pool_size=CONNECTIONS, max_overflow=0
    )
    poolers.limit(engine, _LIMITS)
    sa.event.listen(engine, "checkin", _record_use)
    sa.event.listen(engine, "checkout", _check_idle(engine.dialect))
    return engine


def _refuse_foreign_parameters(url: sa.URL) -> None:
    """Raises ``InvalidRequest`` for a parameter that libpq does not have: other drivers' forms of URLs."""
    library: Any = url.get_dialect().import_dbapi()
    known = {option.keyword.decode() for option in library.pq.Conninfo.get_defaults()}
    for name in sorted(set(url.query) - known):
        raise InvalidRequest(
            f"database: the URL has ?{printable(name[:40])}=, which PostgreSQL's own library does not know",
            _FOREIGN_PARAMETERS.get(name, "remove it: libpq's parameters are allowed, such as sslmode"),
        )


def refuse_network_filesystem(folder: Path, mounts: str | None = None) -> None:
    """Raises ``InvalidRequest`` if ``folder`` is on one. ``mounts``: text of /proc/self/mountinfo."""
    kind = filesystem_type(folder, mounts)
    if kind in NETWORK_FILESYSTEMS:
        raise InvalidRequest(
            f"{folder} is on a network file system ({kind}), where SQLite loses data",
            "put --data on a local disk, or use PostgreSQL",
        )


def filesystem_type(folder: Path, mounts: str | None = None) -> str:
    """Returns the type of the mount that holds ``folder``, by mountinfo(5); empty where there is none (no
    Linux)."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return ""
    real, best, kind = os.path.realpath(folder), -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = fields[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind


def _opened(engine: sa.Engine, reserve: Reserve | None = None) -> Index:
    try:
        with _errors_at_opening(engine):
            if engine.dialect.name == "postgresql":
                with engine.connect() as connection:
                    demand_rights(connection)
            _upgrade(engine)
    except BaseException:
        engine.dispose()
        raise
    return Index(engine, reserve)


@contextmanager
def _errors_at_opening(engine: sa.Engine) -> Iterator[None]:
    """Turns the database's errors into those of ``cachesvc_client.wire.errors``; a foreign database is one
    too."""
    place = engine.url.database or "" if engine.dialect.name == "sqlite" else ""
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        what = f"the index {place}".rstrip()
        cause = getattr(error, "orig", None) or error
        # SQLite reports these with the same error class as a lock.
        foreign = any(
            sign in message_of(cause) for sign in ("already exists", "duplicate column", "no such table")
        )
        translated = None if foreign else own_error(error, place)
        if translated is not None:
            raise translated from None
        raise InvalidRequest(
            f"{what} is not a database of cachesvc, or one that was half-migrated by hand: "
            f"{message_of(cause)}",
            "name another, or restore the backup",
        ) from None


def _upgrade(engine: sa.Engine) -> None:
    """Make the tables of a new database, or run the steps that an older schema lacks, in one transaction."""
    with importlib.resources.as_file(importlib.resources.files(__package__) / "migrations") as folder:
        config = _alembic(folder)
        known = ScriptDirectory.from_config(config)
        if engine.dialect.name == "postgresql":
            # Most starts find nothing to do, and wait for nobody.
            with engine.connect() as connection:
                if _is_current(known, MigrationContext.configure(connection).get_current_revision()):
                    return
        with engine.execution_options(cachesvc_write=True).connect() as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                _take_turns(connection)
            current = MigrationContext.configure(connection).get_current_revision()
            config.attributes["connection"] = connection
            if current is None:
                metadata.create_all(connection, checkfirst=False)  # tables without a version are refused
                command.stamp(config, "head")
            elif not _is_current(known, current):
                command.upgrade(config, "head")


def _take_turns(connection: sa.Connection) -> None:
    """Waits for the upgrades of replicas that started earlier. A replica waits for a long upgrade; an upgrade
    does not wait long for other transactions."""
    for setting in ("statement_timeout", "lock_timeout"):
        connection.execute(sa.text(f"SET LOCAL {setting} = '{UPGRADE_SECONDS}s'"))
    # The number is any constant.
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(7236455)"))
    connection.execute(sa.text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))


def _alembic(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _is_current(known: ScriptDirectory, schema: str | None) -> bool:
    """Returns whether ``schema`` is the newest that this code knows, or a newer one that only adds to it, so
    that an older release can run, and start, beside a newer one. Raises ``ProtocolMismatch`` for others."""
    head = known.get_current_head() or ""
    if schema is None or schema in {step.revision for step in known.walk_revisions()}:
        return schema == head
    theirs, ours = _STEP.fullmatch(schema), _STEP.fullmatch(head)
    if theirs and ours and theirs[1] == ours[1] and theirs[2] > ours[2]:
        _log.warning(
            "the database has schema %s, of a newer cachesvc; this one knows %s and goes on with that",
            schema,
            head,
        )
        return True
    raise ProtocolMismatch(
        f"the database has schema {schema[:40]}, which this cachesvc does not know",
        "a newer cachesvc wrote it: upgrade this one, or restore the backup made before",
    )


def _record_use(_connection: Any, record: Any) -> None:
    record.info["used"] = time.monotonic()


def _check_idle(dialect: Any) -> Callable[..., None]:
    """Returns the check of a connection at its checkout: it tries one that was idle, or that the server
    ended.

    SQLAlchemy's ``pool_pre_ping`` tries at each checkout, which was a third of a resolve's queries.
    """

    def check(connection: Any, record: Any, _proxy: Any) -> None:
        idle = time.monotonic() - record.info.get("used", float("inf"))
        if idle > IDLE_SECONDS or _has_input(connection.pgconn.socket):
            try:
                dialect.do_ping(connection)
            except dialect.loaded_dbapi.Error:
                raise sa.exc.DisconnectionError from None  # the pool makes another

    return check


def _has_input(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver must not begin transactions by itself: `_begin_sqlite` does.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A write transaction takes the lock at once: upgrading a read lock later fails under contention.
    write = connection.get_execution_options().get("cachesvc_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
