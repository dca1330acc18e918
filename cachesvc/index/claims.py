"""Store claims: one row for each, taken by one conditional upsert. The clock is the database's, so that
replicas whose own clocks differ agree on when a claim ends."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from cachesvc.domain.access import ANY
from cachesvc.domain.claims import RECENT_SECONDS, Claim
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.requests.claims import ClaimRef, ClaimSubject

from .sql import Rows, run_on_driver, upsert
from .tables import ClaimRow

_BATCH = 500
"""Claims that one statement reads."""


@functools.cache
def _fulfil(number: int) -> Any:
    """Returns the statement for ``number`` keys: two, or three."""
    keys: list[Any] = [sa.bindparam(f"key{index}") for index in range(number)]
    fulfilled = sa.update(ClaimRow).where(col(ClaimRow.key).in_(keys)).values(done=True)
    return fulfilled.returning(col(ClaimRow.key))


class Claims(Rows):
    """The claims. Every method but ``states`` is one statement; each reads the database's clock at its
    moment."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._dialect = session.get_bind().dialect.name
        self._table: Any = ClaimRow.__table__  # type: ignore[attr-defined]

    def take(
        self, subject: ClaimSubject, holder: str, who: str, token: str, seconds: int, seen: int = 0
    ) -> tuple[Claim, int] | None:
        """Takes the claim and returns it with the clock; ``None`` if another holder has it.

        A claim is free by the rule of ``domain.claims.standing``. A new holder's fence is above every earlier
        fence, also above those of deleted rows: it is at least the clock. The same holder keeps its fence.
        """
        now, table = self._clock(), self._table.c
        insert = upsert(self._session, ClaimRow).values(
            key=subject.key,
            namespace=subject.namespace,
            name=subject.name,
            lane=subject.lane or "",
            holder=holder,
            who=who,
            token=token,
            fence=now,
            taken=now,
            expires=now + seconds,
            done=False,
        )
        same, over = table.holder == holder, sa.or_(table.holder == "", table.expires <= now)
        recent = sa.and_(table.done, table.fence != seen, table.expires > now - RECENT_SECONDS)
        above = sa.case((table.fence >= now, table.fence + 1), else_=now)
        statement = insert.on_conflict_do_update(
            index_elements=["key"],
            set_={
                "holder": holder,
                "who": who,
                "token": token,
                "fence": sa.case((same, table.fence), else_=above),
                "taken": sa.case((same, table.taken), else_=now),
                "expires": now + seconds,
                "done": sa.case((same, table.done), else_=sa.false()),
            },
            where=sa.or_(same, sa.and_(over, sa.not_(recent))),
        )
        return self._first(statement.returning(*self._table.c, now.label("now")))

    def renew(self, shown: ClaimRef, seconds: int) -> tuple[Claim, int] | None:
        """Moves the claim's end; ``None`` if it is not the holder's any more."""
        now = self._clock()
        statement = sa.update(self._table).where(*self._current(shown)).values(expires=now + seconds)
        return self._first(statement.returning(*self._table.c, now.label("now")))

    def release(self, shown: ClaimRef, *, done: bool) -> bool:
        """Gives the claim back and returns whether it was the holder's. ``done``: its revision is
        published."""
        ended: dict[str, Any] = {"holder": "", "expires": self._clock()}
        if done:
            ended["done"] = True
        statement = sa.update(self._table).where(*self._current(shown)).values(**ended)
        return bool(self._change(statement))

    def fulfil(self, keys: Sequence[Digest]) -> list[Digest]:
        """Marks claims as served by a publication, and returns those that exist."""
        named = {f"key{number}": key for number, key in enumerate(keys)}
        rows = run_on_driver(self._session.connection(), _fulfil(len(keys)), named).fetchall()
        return [Digest(key) for (key,) in rows]

    def lock(self, key: Digest) -> Claim | None:
        """Returns the claim; no one takes, renews or releases it before this transaction ends."""
        row = self._first(self._select().where(self._table.c.key == key).with_for_update())
        return row[0] if row else None

    def get(self, key: Digest) -> tuple[Claim, int] | None:
        """Returns the claim as it is now, and the clock."""
        return self._first(self._select().where(self._table.c.key == key))

    def states(self, keys: Sequence[Digest]) -> dict[Digest, tuple[Claim, int]]:
        """Returns the claims that exist, each with the clock."""
        claims: dict[Digest, tuple[Claim, int]] = {}
        for begin in range(0, len(keys), _BATCH):
            some = self._select().where(self._table.c.key.in_(keys[begin : begin + _BATCH]))
            for row in self._run(some):
                claim = _claim(row)
                claims[claim.key] = claim, row.now
        return claims

    def live(self, token: str) -> int:
        """Returns how many claims of this token hold now."""
        table = self._table.c
        query = sa.select(sa.func.count()).where(
            table.token == token, table.holder != "", table.expires > self._clock()
        )
        return int(self._run(query.select_from(self._table)).scalar() or 0)

    def all_live(self, namespace: str, limit: int) -> list[tuple[Claim, int]]:
        """Returns the claims that hold now, each with the clock, the newest first; ``*``: of all
        namespaces."""
        table = self._table.c
        query = self._select().where(table.expires > self._clock(), table.holder != "")
        if namespace != ANY:
            query = query.where(table.namespace == namespace)
        query = query.order_by(table.taken.desc(), table.key).limit(limit)
        return [(_claim(row), row.now) for row in self._run(query)]

    def forget(self, seconds: int) -> int:
        """Deletes the claims that ended more than ``seconds`` ago, and returns how many."""
        over = sa.delete(ClaimRow).where(col(ClaimRow.expires) < self._clock() - seconds)
        return self._change(over)

    def _current(self, shown: ClaimRef) -> tuple[Any, ...]:
        table = self._table.c
        return table.key == shown.key, table.holder == shown.holder, table.fence == shown.fence

    def _select(self) -> Any:
        return sa.select(*self._table.c, self._clock().label("now"))

    def _first(self, statement: Any) -> tuple[Claim, int] | None:
        self._session.flush()
        row: Any = self._run(statement).first()
        return (_claim(row), row.now) if row is not None else None

    def _clock(self) -> sa.ColumnElement[int]:
        """Returns the clock at the moment when the row is read: after the wait for a lock, if there was
        one."""
        if self._dialect == "postgresql":
            seconds: Any = sa.func.floor(sa.func.extract("epoch", sa.func.clock_timestamp()))
        else:
            seconds = sa.func.strftime("%s", "now")
        return sa.cast(seconds, sa.BigInteger)


def _claim(row: Any) -> Claim:
    return Claim(
        key=Digest(row.key),
        namespace=Namespace(row.namespace),
        name=ShortName(row.name),
        lane=Lane(row.lane) if row.lane else None,
        holder=row.holder,
        fence=row.fence,
        taken=row.taken,
        expires=row.expires,
        done=bool(row.done),
        who=row.who,
    )
