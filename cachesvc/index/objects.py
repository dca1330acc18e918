"""Objects of the blob store, as the index knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from cachesvc.domain.retention import ObjectFacts
from cachesvc_client.wire.digest import Digest

from .sql import changed
from .tables import ObjectRow, RevisionRow

_TABLE: Any = ObjectRow.__table__  # type: ignore[attr-defined]
_BY_KEY = sa.select(_TABLE.c.state, _TABLE.c.digest, _TABLE.c.size).where(_TABLE.c.key == sa.bindparam("key"))


class Objects:
    """Rows are made before their object's first byte and removed after its last."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, key: str, leased_until: int) -> None:
        """An object that will be written now."""
        self._session.add(ObjectRow(key=key, leased_until=leased_until))

    def received(self, key: str, digest: Digest, size: int, leased_until: int) -> bool:
        """All bytes are durable. False if GC took the object meanwhile."""
        return self._change(key, digest=digest, size=size, leased_until=leased_until)

    def lease(self, key: str, leased_until: int) -> bool:
        """Moves the lease of a live object; false if there is none. A commit does this first: it holds the
        row until it ends, and ``mark`` waits for it."""
        return self._change(key, leased_until=leased_until)

    def content(self, key: str) -> tuple[Digest, int] | None:
        """What was received, if the object is whole and live."""
        self._session.flush()
        row: Any = self._session.connection().execute(_BY_KEY, {"key": key}).first()
        if row is None or row.state != "live" or row.digest is None or row.size is None:
            return None
        return Digest(row.digest), row.size

    def loose(self, now: int, limit: int) -> list[ObjectFacts]:
        """At most ``limit`` objects that no revision names and whose lease is over, or that are marked."""
        query = select(ObjectRow).where(*_loose(now)).order_by(col(ObjectRow.leased_until))
        return [
            ObjectFacts(row.key, row.state, row.leased_until, False)
            for row in self._session.exec(query.limit(limit))
        ]

    def count_loose(self, now: int) -> int:
        """How many there are."""
        query = sa.select(sa.func.count()).select_from(ObjectRow).where(*_loose(now))
        return int(self._session.connection().execute(query).scalar() or 0)

    def known(self, keys: Sequence[str]) -> set[str]:
        """Those of them that have a row."""
        query = select(ObjectRow.key).where(col(ObjectRow.key).in_(keys))
        return set(self._session.exec(query))

    def mark(self, key: str, now: int) -> bool:
        """Live → deleting, if it may be collected at this very moment; true if it is marked now.

        The row is locked by one statement and judged by the next, which sees what a commit that held the
        lock has written: PostgreSQL judges a single statement by the snapshot from before it waited.
        """
        this = col(ObjectRow.key) == key
        self._session.connection().execute(sa.select(col(ObjectRow.key)).where(this).with_for_update())
        may = sa.or_(col(ObjectRow.state) == "deleting", col(ObjectRow.leased_until) < now)
        free = sa.update(ObjectRow).where(this, may, ~_referenced())
        return bool(changed(self._session, free.values(state="deleting")))

    def forget(self, key: str) -> None:
        """The object is gone from the store."""
        gone = sa.delete(ObjectRow).where(col(ObjectRow.key) == key, col(ObjectRow.state) == "deleting")
        changed(self._session, gone)

    def _change(self, key: str, **values: object) -> bool:
        live = sa.update(ObjectRow).where(col(ObjectRow.key) == key, col(ObjectRow.state) == "live")
        return bool(changed(self._session, live.values(**values)))


def _loose(now: int) -> tuple[sa.ColumnElement[bool], ...]:
    over = sa.or_(col(ObjectRow.state) == "deleting", col(ObjectRow.leased_until) < now)
    return over, ~_referenced()


def _referenced() -> sa.ColumnElement[bool]:
    return sa.exists().where(col(RevisionRow.pack_key) == col(ObjectRow.key))
