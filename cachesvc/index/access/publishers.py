"""Store trusted publishers, and the job tokens that were used."""

from __future__ import annotations

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.schema.publishers import PublisherRecord, PublisherRequest
from cachesvc_client.wire.names import Namespace

from ..sql import Rows, insert_unless_there, within
from ..tables import JobTokenRow, PublisherRow


class Publishers(Rows):
    """Rules by which CI jobs get tokens. The truth about which job token was used is here, in the index:
    hot storage may forget."""

    def add(self, record: PublisherRecord) -> None:
        """Adds a rule."""
        rule = record.rule
        self._session.add(
            PublisherRow(
                publisher=record.publisher,
                issuer=rule.issuer,
                audience=rule.audience,
                claims=rule.claims,
                namespace=rule.namespace,
                lane=rule.lane,
                role=rule.role,
                minutes=rule.minutes,
                label=rule.label,
                created=record.created,
            )
        )

    def get(self, publisher: str) -> PublisherRecord | None:
        """Returns the rule with this id, if there is one."""
        row = self._session.get(PublisherRow, publisher)
        return _record(row) if row else None

    def lock(self, publisher: str) -> bool:
        """Returns whether there is a rule; it is removed only after this transaction."""
        rule = select(PublisherRow.publisher).where(PublisherRow.publisher == publisher).with_for_update()
        return self._session.exec(rule).first() is not None

    def all(self, namespace: str) -> list[PublisherRecord]:
        """Returns the rules of one namespace, or for ``*`` all; oldest first."""
        query = select(PublisherRow).order_by(col(PublisherRow.created), col(PublisherRow.publisher))
        query = within(query, col(PublisherRow.namespace), namespace)
        return [_record(row) for row in self._session.exec(query)]

    def of_issuer(self, issuer: str) -> list[PublisherRecord]:
        """Returns the rules for the jobs of an issuer."""
        rows = self._session.exec(select(PublisherRow).where(PublisherRow.issuer == issuer))
        return [_record(row) for row in rows]

    def remove(self, publisher: str) -> bool:
        """Removes a rule and returns whether it was there."""
        row = sa.delete(PublisherRow).where(col(PublisherRow.publisher) == publisher)
        return bool(self._change(row))

    def use(self, use: str, expires: int) -> bool:
        """Writes down that a job's token is used; returns whether this is the first time."""
        return insert_unless_there(self._session, JobTokenRow, use=use, expires=expires)

    def forget_used(self, before: int) -> None:
        """Forgets the job tokens that expired before ``before``."""
        self._change(sa.delete(JobTokenRow).where(col(JobTokenRow.expires) < before))


def _record(row: PublisherRow) -> PublisherRecord:
    rule = PublisherRequest(
        issuer=row.issuer,
        audience=row.audience,
        claims=row.claims,
        namespace=Namespace(row.namespace),
        lane=row.lane,
        role=row.role,
        minutes=row.minutes,
        label=row.label,
    )
    return PublisherRecord(row.publisher, row.created, rule)
