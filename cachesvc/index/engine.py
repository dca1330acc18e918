"""Opens the database: SQLite in a folder, or PostgreSQL; brings its schema up to date."""

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

from cachesvc_client.wire.errors import InvalidRequest, ProtocolMismatch, Unavailable

from .unit import Index, said, translated

_log = logging.getLogger("cachesvc.index")
_STEP = re.compile(r"(?:g(\d{1,4})-)?(\d{4})")
"""A step's name. Steps of one generation only add; one that takes away what older code needs begins the next
(``g2-0010``)."""

CONNECTIONS = 16
"""Of a process, at most; kept open: the pool's own default closes those above five after each use."""
IDLE_SECONDS = 1.0
"""A connection that lay idle for longer is tried before it is used: the network may have gone meanwhile."""
BUSY_SECONDS = 10
"""How long a statement waits for SQLite's one writer."""
UPGRADE_SECONDS = 900
"""How long one step of an upgrade may take, and how long the replicas wait that start meanwhile."""
LOCK_SECONDS = 10
"""How long a statement waits for PostgreSQL's locks: others wait behind who waits for a table's."""

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs", "gpfs", "beegfs"}
    | {"fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph", "fuse.rclone"}
    | {"virtiofs", "vboxsf", "davfs", "fuse.davfs2", "ocfs2", "gfs2"}
)
"""Types of mounts on which SQLite's locks or its shared memory cannot be relied on
(https://www.sqlite.org/wal.html: "WAL does not work over a network filesystem")."""


def open_sqlite(path: Path) -> Index:
    """The index in the file ``path`` (its folder exists), with the newest schema.

    WAL, ``BEGIN IMMEDIATE`` for writes, full synchronisation: a committed transaction survives a loss of
    power. Raises ``InvalidRequest`` on a network file system, ``ProtocolMismatch`` for a newer schema.
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
    return _opened(engine)


def pending_sqlite(path: Path) -> list[tuple[str, str]]:
    """(step, what it does) of the migrations that ``open_sqlite`` would run; changes nothing."""
    if not path.exists():
        return _steps(None)
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))
    return _pending(engine)


def pending_postgresql(url: str) -> list[tuple[str, str]]:
    """(step, what it does) of the migrations that ``open_postgresql`` would run; changes nothing."""
    return _pending(_postgresql(url))


def _pending(engine: sa.Engine) -> list[tuple[str, str]]:
    try:
        with _told_at_opening(engine), engine.connect() as connection:
            return _steps(MigrationContext.configure(connection).get_current_revision())
    finally:
        engine.dispose()


def _steps(current: str | None) -> list[tuple[str, str]]:
    with importlib.resources.as_file(importlib.resources.files(__package__) / "migrations") as folder:
        known = ScriptDirectory.from_config(_alembic(folder))
        if _current(known, current):
            return []
        steps = []
        for step in known.walk_revisions():
            if step.revision == current:
                break
            steps.append((step.revision, (step.doc or "").splitlines()[0]))
    return steps[::-1]


def open_postgresql(url: str) -> Index:
    """The index at ``postgresql://…``, with the newest schema, or a newer release's that only adds to it.

    Raises ``Unavailable``, ``InvalidRequest``, ``ProtocolMismatch`` for a schema that this code cannot use.
    """
    return _opened(_postgresql(url))


def _postgresql(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url).set(drivername="postgresql+psycopg")
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidRequest("database: not a URL", "postgresql://user@host/name is expected") from None
    options = (
        f"-c statement_timeout=30s -c lock_timeout={LOCK_SECONDS}s -c idle_in_transaction_session_timeout=60s"
    )
    engine = sa.create_engine(
        parsed,
        connect_args={"connect_timeout": 5, "options": options},
        pool_size=CONNECTIONS,
        max_overflow=0,
    )
    sa.event.listen(engine, "checkin", _used)
    sa.event.listen(engine, "checkout", _check_idle(engine.dialect))
    return engine


def refuse_network_filesystem(folder: Path, mounts: str | None = None) -> None:
    """Raises ``InvalidRequest`` if ``folder`` is on one. ``mounts``: text of /proc/self/mountinfo."""
    kind = filesystem_type(folder, mounts)
    if kind in NETWORK_FILESYSTEMS:
        raise InvalidRequest(
            f"{folder} is on a network file system ({kind}), where SQLite loses data",
            "put --data on a local disk, or use PostgreSQL",
        )


def filesystem_type(folder: Path, mounts: str | None = None) -> str:
    """The type of the mount that holds ``folder``, by mountinfo(5); empty where there is none (no Linux)."""
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


def _opened(engine: sa.Engine) -> Index:
    try:
        with _told_at_opening(engine):
            _upgrade(engine)
    except BaseException:
        engine.dispose()
        raise
    return Index(engine)


@contextmanager
def _told_at_opening(engine: sa.Engine) -> Iterator[None]:
    """The database's errors as ours; what is no database of ours is told as that."""
    place = engine.url.database or "" if engine.dialect.name == "sqlite" else ""
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        what = f"the index {place}".rstrip()
        cause = getattr(error, "orig", None) or error
        # SQLite tells of these as it does of a lock.
        other = any(sign in said(cause) for sign in ("already exists", "duplicate column", "no such table"))
        told = None if other else translated(error, place)
        if told is not None:
            raise told from None
        raise InvalidRequest(
            f"{what} is not a database of cachesvc, or one that was half-migrated by hand: {said(cause)}",
            "name another, or restore the backup",
        ) from None


def _upgrade(engine: sa.Engine) -> None:
    with importlib.resources.as_file(importlib.resources.files(__package__) / "migrations") as folder:
        config = _alembic(folder)
        known = ScriptDirectory.from_config(config)
        if engine.dialect.name == "postgresql":
            # Most starts find nothing to do, and wait for nobody.
            with engine.connect() as connection:
                if _current(known, MigrationContext.configure(connection).get_current_revision()):
                    return
        with engine.execution_options(cachesvc_write=True).connect() as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                _take_turns(connection)
            current = MigrationContext.configure(connection).get_current_revision()
            if not _current(known, current):
                config.attributes["connection"] = connection
                command.upgrade(config, "head")


def _take_turns(connection: sa.Connection) -> None:
    """Replicas that start together upgrade one after the other; all of them wait for a long upgrade, and the
    upgrade for nobody's transaction."""
    for setting in ("statement_timeout", "lock_timeout"):
        connection.execute(sa.text(f"SET LOCAL {setting} = '{UPGRADE_SECONDS}s'"))
    # The number is any constant.
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(7236455)"))
    connection.execute(sa.text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))


def _alembic(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _current(known: ScriptDirectory, found: str | None) -> bool:
    """Whether the schema ``found`` is the newest that this code knows, or a newer one that only adds to it:
    beside a newer release the older one goes on, and starts again. Raises ``ProtocolMismatch`` for others."""
    head = known.get_current_head() or ""
    if found is None or found in {step.revision for step in known.walk_revisions()}:
        return found == head
    theirs, ours = _STEP.fullmatch(found), _STEP.fullmatch(head)
    if theirs and ours and theirs[1] == ours[1] and theirs[2] > ours[2]:
        _log.warning(
            "the database has schema %s, of a newer cachesvc; this one knows %s and goes on with that",
            found,
            head,
        )
        return True
    raise ProtocolMismatch(
        f"the database has schema {found[:40]}, which this cachesvc does not know",
        "a newer cachesvc wrote it: upgrade this one, or restore the backup made before",
    )


def _used(_connection: Any, record: Any) -> None:
    record.info["used"] = time.monotonic()


def _check_idle(dialect: Any) -> Callable[..., None]:
    """The pool's own ``pool_pre_ping``, which asks at each checkout, was a third of a resolve's queries. A
    server that ends a connection says so: then, and else after a while, it is tried."""

    def check(connection: Any, record: Any, _proxy: Any) -> None:
        idle = time.monotonic() - record.info.get("used", float("inf"))
        if idle > IDLE_SECONDS or _said_something(connection.pgconn.socket):
            try:
                dialect.do_ping(connection)
            except dialect.loaded_dbapi.Error:
                raise sa.exc.DisconnectionError from None  # the pool makes another

    return check


def _said_something(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(0))


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver must not begin transactions by itself: `_begin_sqlite` does.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A write transaction takes the lock at once: upgrading a read lock later fails under contention.
    write = connection.get_execution_options().get("cachesvc_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
