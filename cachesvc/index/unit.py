"""Run transactions, and offer the repositories that work in them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session

from cachesvc import spans
from cachesvc.reserve import Reserve
from cachesvc_client.wire.errors import CacheSvcError, StorageFull, Unavailable

from .access.publishers import Publishers
from .access.sessions import Sessions
from .access.signers import RevokedSigners, Signers
from .access.tokens import Tokens
from .access.trust import TrustFiles
from .audit import Audit
from .claims import Claims
from .entries.ages import Ages
from .entries.ancestry import Ancestry
from .entries.entries import Entries
from .entries.heads import Heads
from .entries.inventory import Inventory
from .entries.listing import Listing
from .entries.namespaces import Namespaces
from .entries.places import PackPlaces
from .entries.sums import Sums
from .entries.withdrawals import Withdrawals
from .entries.withheld import WithheldRevisions
from .mirrors import Mirrors
from .packs.objects import Objects
from .packs.uploads import Uploads
from .starts.cold_starts import ColdStarts
from .starts.days import Days
from .starts.environments import Environments
from .starts.nodes import RevisionNodes
from .starts.usefulness import Usefulness
from .webhooks import Webhooks


class Unit:
    """The repositories of one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.tokens = Tokens(session)
        self.sessions = Sessions(session)
        self.signers = Signers(session)
        self.revoked = RevokedSigners(session)
        self.publishers = Publishers(session)
        self.trust = TrustFiles(session)
        self.objects = Objects(session)
        self.uploads = Uploads(session)
        self.claims = Claims(session)
        self.entries = Entries(session)
        self.listing = Listing(session)
        self.pack_places = PackPlaces(session)
        self.ages = Ages(session)
        self.sums = Sums(session)
        self.withheld = WithheldRevisions(session)
        self.usefulness = Usefulness(session)
        self.nodes = RevisionNodes(session)
        self.environments = Environments(session)
        self.cold_starts = ColdStarts(session)
        self.days = Days(session)
        self.namespaces = Namespaces(session)
        self.inventory = Inventory(session)
        self.audit = Audit(session)
        self.webhooks = Webhooks(session)
        self.mirrors = Mirrors(session)
        self.withdrawals = Withdrawals(session)
        self.ancestry = Ancestry(session)

    @property
    def connection(self) -> sa.Connection:
        """The connection of the transaction."""
        return self._session.connection()


class Index:
    """The database. Safe for use from several threads; each block has a connection of its own.

    Errors: ``Unavailable`` (unreachable, locked for too long, deadlock), ``StorageFull``. An error in
    a block rolls its transaction back.
    """

    def __init__(self, engine: sa.Engine, reserve: Reserve | None = None) -> None:
        self._reading = engine
        self._reserve = reserve or Reserve()
        if engine.dialect.name == "postgresql":
            # A read needs no transaction around its statements, so none is begun and ended.
            self._reading = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._writing = engine.execution_options(cachesvc_write=True)
        self._turn: AbstractContextManager[object] = nullcontext()
        if engine.dialect.name == "sqlite":
            self._turn = _WriterTurn()
        self._single = self._reading if engine.dialect.name == "postgresql" else self._writing

    @contextmanager
    def read(self) -> Iterator[Unit]:
        """Reads without waiting for a writer: one consistent view (SQLite), or statement by statement
        (PostgreSQL)."""
        with (
            spans.span("index.read"),
            _own_errors(),
            self._reading.connect() as connection,
            _SessionWithin(connection) as session,
        ):
            connection.begin()  # ends with the connection, without a commit
            yield Unit(session)

    @contextmanager
    def one_view(self) -> Iterator[sa.Connection]:
        """Reads everything as it was at one moment. Holds up no writer, and waits for none."""
        engine = self._reading
        if engine.dialect.name == "postgresql":
            # https://www.postgresql.org/docs/current/transaction-iso.html: one snapshot for all statements.
            engine = self._writing.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        with _own_errors(), engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def look(self) -> Iterator[Heads]:
        """Reads heads, statement by statement. Like ``read``, at a tenth of its cost: every resolve needs
        this."""
        with spans.span("index.look"), _own_errors(), self._reading.connect() as connection:
            yield Heads(connection)

    @contextmanager
    def write(self) -> Iterator[Unit]:
        """Runs one transaction, which is durable when the block ends."""
        self._reserve.tend()  # on a full disk its bytes are free before the transaction needs them
        with self._turn, _writing(self._writing) as unit:
            yield unit

    @contextmanager
    def write_once(self) -> Iterator[Unit]:
        """Runs one statement as :meth:`write` does, without a transaction around it: on PostgreSQL one round
        trip instead of three."""
        with self._turn, _writing(self._single) as unit:
            yield unit

    def check(self) -> None:
        """Raises ``Unavailable`` unless a statement can be run and the schema is there."""
        with _own_errors(), Session(self._reading) as session:
            session.connection().execute(sa.text("SELECT count(*) FROM namespaces"))

    def connections(self) -> dict[str, int]:
        """Returns how many connections of the pool are ``used``, and how many ``idle``."""
        pool = self._reading.pool
        if not isinstance(pool, sa.QueuePool):
            return {}
        return {"used": pool.checkedout(), "idle": pool.checkedin()}

    def close(self) -> None:
        """Closes all connections."""
        self._reading.dispose()


WRITER_SECONDS = 10.0
"""Seconds that a transaction waits for the other writers of this process, as long as for those of others."""


class _WriterTurn:
    """Lets the writers of this process go one after the other, before each takes a connection.

    SQLite has one writer. Those that waited for it in SQLite held all connections of the pool, and who only
    read got none; they also slept between two tries while no one wrote.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=WRITER_SECONDS):
            raise Unavailable("the index is locked: other writers take too long", "try again")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _SessionWithin(Session):
    """A session on a connection whose transaction the caller has begun and ends. A transaction of the
    session's own would need longer than a statement; only the queries by rows begin one."""

    def __init__(self, connection: sa.Connection) -> None:
        super().__init__(connection)
        self._begun = connection

    def connection(self, *_: Any, **__: Any) -> sa.Connection:
        """Returns the connection of this session's statements."""
        return self._begun


@contextmanager
def _writing(engine: sa.Engine) -> Iterator[Unit]:
    with (
        spans.span("index.write"),
        _own_errors(),
        engine.connect() as connection,
        connection.begin(),
        _SessionWithin(connection) as session,
    ):
        yield Unit(session)
        session.flush()


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        translated = own_error(error)
        if translated is None:
            raise
        raise translated from None


def own_error(error: Exception, place: str = "") -> CacheSvcError | None:
    """Returns the ``CacheSvcError`` for an error of the database, in one line with a hint; ``None`` for a
    defect of this code. ``place``: the path of the database, which the error does not name."""
    cause = getattr(error, "orig", None) or error
    text = message_of(cause)
    state = getattr(cause, "sqlstate", None) or ""
    index = f"the index {place}".rstrip()
    if "disk is full" in text or state == "53100" or _full(cause):
        return StorageFull(f"{index} cannot be written: {text}", "make room on the database's disk")
    for sign, hint in _HINTS:
        if sign == state or (not state and sign in text):
            return Unavailable(f"{index} cannot be used: {text}", hint)
    if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)):
        return Unavailable(f"{index} cannot be used: {text}")
    return None


def message_of(cause: BaseException) -> str:
    """Returns the database's message in one line."""
    text = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
    return " ".join(text.split())[:300] or type(cause).__name__


_USER = "the setting database holds user and password: postgresql://user:password@host/name"
_REACH = "is PostgreSQL running there, and reachable from here? see the setting database"
_WRITABLE = "the file index.sqlite3 and its folder must be writable for this user"
_ROLES = (
    "the owner of the schema makes it, with CREATE and USAGE there: cachesvc admin --local migrate --apply; "
    "the role that serves needs USAGE, and rights on the tables"
)
_HINTS = (
    ("password authentication failed", _USER),
    ("no password supplied", _USER),
    ("pg_hba.conf", "let this host and user in (pg_hba.conf), or fix the setting database"),
    ('role "', "create the user, or fix the setting database"),
    ('database "', "create the database, or fix the setting database"),
    ("connection failed", _REACH),
    ("connection timeout", _REACH),
    ("failed to resolve host", _REACH),
    ("53300", "raise PostgreSQL's max_connections, or run fewer replicas"),
    ("42501", _ROLES),
    ("3F000", _ROLES),
    ("25006", "this PostgreSQL is a standby or read-only: name the primary in the setting database"),
    ("55P03", "somebody holds a lock in the database for long: try again, or end that session"),
    ("42P01", "its tables are gone: start the server again, or restore the backup"),
    ("readonly database", _WRITABLE),
    ("unable to open database", _WRITABLE),
    ("disk I/O error", "look at the disk of the data folder: full, over a quota, or failing"),
    ("malformed", "the file is damaged: restore the backup"),
)
"""Hints by a part of the message or by SQLSTATE
(https://www.postgresql.org/docs/current/errcodes-appendix.html). The first that applies counts; a failed
connection has no SQLSTATE."""


def _full(error: object) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
