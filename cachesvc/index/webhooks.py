"""Store webhooks, and the events that their receivers have not got yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.schema.webhooks import WebhookRecord

from .entries.entries import between_spaces
from .sql import Rows, run_on_driver, within
from .tables import DeliveryRow, WebhookRow

MOST_WAITING = 10_000
"""Events of one webhook that wait, at most: more are not stored."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """A webhook whose events one worker sends now. ``failures``: failed tries since the last success."""

    webhook: str
    url: str
    secret: str
    failures: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event for a receiver. ``at``: when it happened, in seconds of UTC. ``tries``: that failed."""

    number: int
    event: str
    at: int
    body: bytes
    tries: int


class Webhooks(Rows):
    """The webhooks, and their events in the order in which they were committed.

    An event's row is written in the transaction of what happened, so that both exist or neither. It refers to
    its webhook by no foreign key: to remove a webhook must not fail a publication that has just found it.
    """

    def add(self, record: WebhookRecord, secret: str) -> None:
        """Adds a webhook."""
        self._session.add(
            WebhookRow(
                webhook=record.webhook,
                namespace=record.namespace,
                url=record.url,
                events=between_spaces(record.events) if record.events else "",
                label=record.label,
                secret=secret,
                created=record.created,
            )
        )
        self._session.flush()

    def get(self, webhook: str) -> tuple[WebhookRecord, str] | None:
        """Returns a webhook and its secret, if it exists."""
        row = self._session.get(WebhookRow, webhook)
        return (self._record(row, {}, {}), row.secret) if row else None

    def all(self, namespace: str) -> list[WebhookRecord]:
        """Returns the webhooks of one namespace, or for ``*`` all, oldest first; with what waits."""
        query = select(WebhookRow).order_by(col(WebhookRow.created), col(WebhookRow.webhook))
        query = within(query, col(WebhookRow.namespace), namespace)
        waiting, dead = self._counts()
        return [self._record(row, waiting, dead) for row in self._session.exec(query)]

    def count(self, namespace: str) -> int:
        """Counts the webhooks of exactly this namespace, or of exactly ``*``."""
        query = sa.select(sa.func.count()).where(col(WebhookRow.namespace) == namespace)
        return int(self._run(query).scalar_one())

    def remove(self, webhook: str) -> None:
        """Removes a webhook with its events."""
        self._change(sa.delete(DeliveryRow).where(col(DeliveryRow.webhook) == webhook))
        self._change(sa.delete(WebhookRow).where(col(WebhookRow.webhook) == webhook))

    def interested(self, namespace: str, kind: str) -> list[str]:
        """Returns the webhooks that get an event of this kind in this namespace, without those for which too
        many wait already. Each publication asks."""
        values = {"namespace": namespace, "kind": f"% {kind} %", "most": MOST_WAITING}
        return [row[0] for row in run_on_driver(self._session.connection(), _INTERESTED, values).fetchall()]

    def store(self, webhooks: Sequence[str], event: str, kind: str, at: int, body: bytes) -> None:
        """Stores an event for each of ``webhooks``, to be sent at once."""
        rows = [
            {"webhook": webhook, "event": event, "kind": kind, "at": at, "body": body.decode(), "due": at}
            for webhook in webhooks
        ]
        self._run(sa.insert(DeliveryRow), [{**row, "tries": 0} for row in rows])

    def anything_due(self, now: int) -> bool:
        """Returns whether `take` would find a webhook. Changes and locks nothing: every worker asks every two
        seconds."""
        return self._run(_due(now).limit(1)).first() is not None

    def take(self, now: int, until: int) -> Receiver | None:
        """Takes a webhook that has an event to send now, until ``until`` at most; ``None`` if there is none.
        No other worker, of this replica or of another, takes it before."""
        # The one that was served longest ago, so that none waits for ever.
        ordered = _due(now).order_by(sa.func.coalesce(col(WebhookRow.busy), 0), col(WebhookRow.webhook))
        locked = ordered.limit(1).with_for_update(skip_locked=True, of=WebhookRow)
        row: Any = self._run(locked).first()
        if row is None:
            return None
        self.hold(row[0], until)
        return Receiver(*row)

    def hold(self, webhook: str, until: int) -> None:
        """Keeps a webhook from other workers until ``until``; until now: gives it back."""
        this = sa.update(WebhookRow).where(col(WebhookRow.webhook) == webhook)
        self._change(this.values(busy=until))

    def next_of(self, webhook: str, now: int) -> Delivery | None:
        """Returns the oldest event that a receiver is to get now."""
        query = (
            sa.select(
                col(DeliveryRow.id),
                col(DeliveryRow.event),
                col(DeliveryRow.at),
                col(DeliveryRow.body),
                col(DeliveryRow.tries),
            )
            .where(
                col(DeliveryRow.webhook) == webhook,
                col(DeliveryRow.dead).is_(None),
                col(DeliveryRow.due) <= now,
            )
            .order_by(col(DeliveryRow.id))
            .limit(1)
        )
        row: Any = self._run(query).first()
        return Delivery(row[0], row[1], row[2], str(row[3]).encode(), row[4]) if row else None

    def delivered(self, webhook: str, number: int, now: int) -> None:
        """Records that a receiver got an event."""
        self._change(sa.delete(DeliveryRow).where(col(DeliveryRow.id) == number))
        this = sa.update(WebhookRow).where(col(WebhookRow.webhook) == webhook)
        self._change(this.values(failures=0, retry=None, last_delivered=now, last_error=""))

    def failed(self, webhook: str, number: int, said: str, due: int, retry: int, dead: int | None) -> None:
        """Records that a try failed: the event is sent again at ``due``, or given up at ``dead``; its
        receiver gets nothing before ``retry``."""
        event = sa.update(DeliveryRow).where(col(DeliveryRow.id) == number)
        self._change(event.values(tries=col(DeliveryRow.tries) + 1, due=due, dead=dead))
        this = sa.update(WebhookRow).where(col(WebhookRow.webhook) == webhook)
        values = {"failures": col(WebhookRow.failures) + 1, "retry": retry, "last_error": said}
        self._change(this.values(values))

    def forget(self, dead_before: int) -> int:
        """Deletes the events that were given up before ``dead_before``, and those whose webhook is gone;
        returns how many."""
        there = sa.exists().where(col(WebhookRow.webhook) == col(DeliveryRow.webhook))
        return self._change(sa.delete(DeliveryRow).where(sa.or_(col(DeliveryRow.dead) < dead_before, ~there)))

    def backlog(self) -> tuple[int, int | None, int]:
        """Returns, over all webhooks: how many events wait, when the oldest of them happened, and how many
        were given up."""
        waiting, dead = self._counts()
        oldest = min((at for _, at in waiting.values()), default=None)
        return sum(count for count, _ in waiting.values()), oldest, sum(dead.values())

    def _counts(self) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
        """Returns, by webhook, (how many wait, when the oldest happened), and how many were given up."""
        query = sa.select(
            col(DeliveryRow.webhook),
            col(DeliveryRow.dead).is_not(None),
            sa.func.count(),
            sa.func.min(col(DeliveryRow.at)),
        ).group_by(col(DeliveryRow.webhook), col(DeliveryRow.dead).is_not(None))
        rows: list[Any] = list(self._run(query))
        waiting = {webhook: (int(count), int(at)) for webhook, gone, count, at in rows if not gone}
        return waiting, {webhook: int(count) for webhook, gone, count, _ in rows if gone}

    def _record(
        self, row: WebhookRow, waiting: dict[str, tuple[int, int]], dead: dict[str, int]
    ) -> WebhookRecord:
        count, oldest = waiting.get(row.webhook, (0, None))
        return WebhookRecord(
            webhook=row.webhook,
            namespace=row.namespace,
            url=row.url,
            events=tuple(row.events.split()),
            label=row.label,
            created=row.created,
            waiting=count,
            oldest=oldest,
            dead=dead.get(row.webhook, 0),
            failures=row.failures,
            retry=row.retry,
            last_delivered=row.last_delivered,
            last_error=row.last_error,
        )


def _due(now: int) -> Any:
    """Selects the fields of a `Receiver`, of each that is to get an event now and that no worker has."""
    due = sa.exists().where(
        col(DeliveryRow.webhook) == col(WebhookRow.webhook),
        col(DeliveryRow.dead).is_(None),
        col(DeliveryRow.due) <= now,
    )
    free = (
        sa.or_(col(WebhookRow.busy).is_(None), col(WebhookRow.busy) <= now),
        sa.or_(col(WebhookRow.retry).is_(None), col(WebhookRow.retry) <= now),
    )
    return sa.select(
        col(WebhookRow.webhook), col(WebhookRow.url), col(WebhookRow.secret), col(WebhookRow.failures)
    ).where(*free, due)


_WAITING = (
    sa.select(sa.func.count())
    .where(col(DeliveryRow.webhook) == col(WebhookRow.webhook), col(DeliveryRow.dead).is_(None))
    .scalar_subquery()
)
_INTERESTED = sa.select(col(WebhookRow.webhook)).where(
    sa.or_(
        col(WebhookRow.namespace) == sa.bindparam("namespace", type_=sa.String()),
        col(WebhookRow.namespace) == sa.literal_column("'*'"),
    ),
    sa.or_(
        col(WebhookRow.events) == sa.literal_column("''"),
        col(WebhookRow.events).like(sa.bindparam("kind", type_=sa.String())),
    ),
    sa.bindparam("most", type_=sa.Integer()) > _WAITING,
)
