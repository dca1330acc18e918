"""One transaction, and the repositories that work in it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlmodel import Session

from cachesvc_client.wire.errors import CacheSvcError, StorageFull, Unavailable

from .audit import Audit
from .entries import Entries
from .inventory import Inventory
from .namespaces import Namespaces
from .objects import Objects
from .tokens import Signers, Tokens
from .uploads import Uploads
from .usefulness import Usefulness


class Unit:
    """The repositories of one transaction."""

    def __init__(self, session: Session) -> None:
        self.tokens = Tokens(session)
        self.signers = Signers(session)
        self.objects = Objects(session)
        self.uploads = Uploads(session)
        self.entries = Entries(session)
        self.usefulness = Usefulness(session)
        self.namespaces = Namespaces(session)
        self.inventory = Inventory(session)
        self.audit = Audit(session)


class Index:
    """The database. Safe for use from several threads; each block has a connection of its own.

    Errors: ``Unavailable`` (unreachable, locked for too long, deadlock), ``StorageFull``. What a block
    raises ends its transaction without a trace.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._reading = engine
        if engine.dialect.name == "postgresql":
            # No transaction holds its statements together anyway: so there is none to begin and to end.
            self._reading = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._writing = engine.execution_options(cachesvc_write=True)

    @contextmanager
    def read(self) -> Iterator[Unit]:
        """A consistent view (SQLite) or one statement each (PostgreSQL); never waits for a writer."""
        with _told(), Session(self._reading) as session:
            yield Unit(session)

    @contextmanager
    def write(self) -> Iterator[Unit]:
        """One transaction, committed and durable when the block ends."""
        with _told(), Session(self._writing) as session, session.begin():
            yield Unit(session)

    def check(self) -> None:
        """Raises ``Unavailable`` unless a statement can be run and the schema is there."""
        with _told(), Session(self._reading) as session:
            session.connection().execute(sa.text("SELECT count(*) FROM namespaces"))

    def connections(self) -> dict[str, int]:
        """Of the pool: how many are ``used``, and how many are ``idle``."""
        pool = self._reading.pool
        if not isinstance(pool, sa.QueuePool):
            return {}
        return {"used": pool.checkedout(), "idle": pool.checkedin()}

    def close(self) -> None:
        """Gives all connections back."""
        self._reading.dispose()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except CacheSvcError:
        raise
    except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
        raise translated(error) from None


def translated(error: Exception) -> CacheSvcError:
    """The database's error as ours, in one line."""
    cause = getattr(error, "orig", None) or error
    text = " ".join(str(cause).split())[:200] or type(cause).__name__
    if "disk is full" in text or getattr(cause, "sqlstate", "") == "53100" or _full(cause):
        return StorageFull(f"the index cannot be written: {text}", "make room on the database's disk")
    return Unavailable(f"the index cannot be used: {text}")


def _full(error: object) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
