"""Store what the index knows of the blob store's objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.domain.retention import ObjectFacts
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Namespace

from ..sql import Rows, run_on_driver
from ..tables import EntryRow, ObjectRow, RevisionRow

_TABLE: Any = ObjectRow.__table__  # type: ignore[attr-defined]
_BY_KEY = sa.select(_TABLE.c.state, _TABLE.c.digest, _TABLE.c.size).where(_TABLE.c.key == sa.bindparam("key"))

_ADD = sa.insert(_TABLE)
_LIVE = sa.update(_TABLE).where(_TABLE.c.key == sa.bindparam("key_"), _TABLE.c.state == "live")
_LIVE_CONTENT = _LIVE.returning(_TABLE.c.digest, _TABLE.c.size)
_LEASE = _LIVE_CONTENT.values(leased_until=sa.bindparam("until"))
_RECEIVE = _LEASE.values(digest=sa.bindparam("digest_"), size=sa.bindparam("size_"))
_NOT_PENDING = {"share": sa.null(), "announced": sa.null()}
_HOLD = _LEASE.values(**_NOT_PENDING)
_HOLD_RECEIVED = _RECEIVE.values(**_NOT_PENDING)


class Objects(Rows):
    """The objects. A row is made before its object's first byte and removed after the object is deleted."""

    def add(
        self, key: str, leased_until: int, share: str | None = None, announced: int | None = None
    ) -> None:
        """Adds an object whose bytes will be written now: at most ``announced``, which count as pending
        bytes of ``share`` until a revision names the object."""
        row = {
            "key": key,
            "state": "live",
            "leased_until": leased_until,
            "share": share,
            "announced": announced,
        }
        run_on_driver(self._session.connection(), _ADD, row)

    def received(self, key: str, digest: Digest, size: int, leased_until: int) -> bool:
        """Records that all bytes are durable; false if GC took the object meanwhile."""
        values = {"key_": key, "until": leased_until, "digest_": digest, "size_": size}
        return self._change_live(_RECEIVE, values) is not None

    def lease(self, key: str, leased_until: int) -> bool:
        """Moves the lease of a live object; false if there is none."""
        return self._change_live(_LEASE, {"key_": key, "until": leased_until}) is not None

    def hold(
        self, key: str, leased_until: int, received: tuple[Digest, int] | None = None
    ) -> tuple[Digest | None, int | None] | None:
        """Moves the lease of a live object for a commit and returns its digest and size; ``None`` if there
        is no such object. From the commit on its bytes are not pending.

        ``received``: digest and size to record, as all bytes are durable. A commit has the row from now until
        it ends, and ``mark`` waits for it.
        """
        values: dict[str, Any] = {"key_": key, "until": leased_until}
        if received is None:
            row = self._change_live(_HOLD, values)
        else:
            row = self._change_live(_HOLD_RECEIVED, values | {"digest_": received[0], "size_": received[1]})
        return None if row is None else (Digest(row[0]) if row[0] else None, row[1])

    def hold_same(self, namespace: Namespace, pack: Digest, size: int, leased_until: int) -> str | None:
        """Moves the lease of an object of the namespace that has these bytes, for a commit, and returns its
        key; ``None`` if there is none."""
        query = (
            sa.select(col(RevisionRow.pack_key))
            .join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .where(col(RevisionRow.pack) == pack, col(EntryRow.namespace) == namespace)
            .limit(1)
        )
        key: str | None = self._run(query).scalar()
        held = self.hold(key, leased_until) if key is not None else None
        return key if held == (pack, size) else None

    def _change_live(self, statement: sa.Executable, values: dict[str, Any]) -> Any:
        return run_on_driver(self._session.connection(), statement, values).fetchone()

    def pending(self, share: str, repeated: str) -> int:
        """Returns the bytes of a share that are announced or stored, and that no commit has taken yet.

        ``repeated``: the beginning of the keys of one upload. One of its objects does not count: a transfer
        that is sent again takes the place of the first.
        """
        query = sa.select(col(ObjectRow.key), col(ObjectRow.announced)).where(col(ObjectRow.share) == share)
        rows = [(row[0], row[1] or 0) for row in self._run(query)]
        of_upload = [size for key, size in rows if key.startswith(repeated)]
        return sum(size for _, size in rows) - max(of_upload, default=0)

    def content(self, key: str) -> tuple[Digest, int] | None:
        """Returns digest and size of the object if it is whole and live."""
        row: Any = self._run(_BY_KEY, {"key": key}).first()
        if row is None or row.state != "live" or row.digest is None or row.size is None:
            return None
        return Digest(row.digest), row.size

    def loose(self, now: int, limit: int, share: str | None = None) -> list[ObjectFacts]:
        """Returns at most ``limit`` objects that no revision names and whose lease is over, or that are
        marked. ``share``: only those that are pending bytes of this share."""
        query = select(ObjectRow).where(*_loose(now)).order_by(col(ObjectRow.leased_until))
        if share is not None:
            query = query.where(col(ObjectRow.share) == share)
        return [
            ObjectFacts(row.key, row.state, row.leased_until, False)
            for row in self._session.exec(query.limit(limit))
        ]

    def count_loose(self, now: int) -> int:
        """Counts the objects of :meth:`loose`.

        Each revision names an object that has a row. So the objects that no revision names are all objects
        less those that revisions name, and both counts read an index alone. Of those that no revision names,
        few have a lease that is not over.
        """
        named = sa.select(sa.func.count(col(RevisionRow.pack_key).distinct()))
        leased = sa.and_(col(ObjectRow.state) != "deleting", col(ObjectRow.leased_until) >= now)
        in_use = sa.select(sa.func.count()).select_from(ObjectRow).where(leased, ~_referenced())
        everything = sa.select(sa.func.count()).select_from(ObjectRow)
        counts = [self._run(one).scalar_one() for one in (everything, named, in_use)]
        # Statement by statement, a publication may come between two counts.
        return max(int(counts[0]) - int(counts[1]) - int(counts[2]), 0)

    def known(self, keys: Sequence[str]) -> set[str]:
        """Returns those of ``keys`` that have a row."""
        query = select(ObjectRow.key).where(col(ObjectRow.key).in_(keys))
        return set(self._session.exec(query))

    def mark(self, key: str, now: int) -> bool:
        """Marks an object as ``deleting`` if it may be collected at this moment; returns whether it is
        marked.

        The row is locked by one statement and judged by the next, which sees what a commit that held the
        lock has written: PostgreSQL judges a single statement by the snapshot from before it waited.
        """
        this = col(ObjectRow.key) == key
        self._run(sa.select(col(ObjectRow.key)).where(this).with_for_update())
        may = sa.or_(col(ObjectRow.state) == "deleting", col(ObjectRow.leased_until) < now)
        free = sa.update(ObjectRow).where(this, may, ~_referenced())
        return bool(self._change(free.values(state="deleting")))

    def forget(self, key: str) -> None:
        """Deletes the row of an object that is gone from the store."""
        marked = sa.delete(ObjectRow).where(col(ObjectRow.key) == key, col(ObjectRow.state) == "deleting")
        self._change(marked)


def _loose(now: int) -> tuple[sa.ColumnElement[bool], ...]:
    over = sa.or_(col(ObjectRow.state) == "deleting", col(ObjectRow.leased_until) < now)
    return over, ~_referenced()


def _referenced() -> sa.ColumnElement[bool]:
    return sa.exists().where(col(RevisionRow.pack_key) == col(ObjectRow.key))
