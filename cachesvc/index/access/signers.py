"""Store signers, and the keys that were revoked."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.domain.access import ANY
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.revocations import RevokedSigner, WithheldName
from cachesvc_client.wire.names import Lane, Namespace, ShortName

from ..sql import Rows, insert_unless_there, run_on_driver, within
from ..tables import EntryRow, NamespaceRow, RevisionRow, RevokedSignerRow, SignerRow

_HERE: Any = sa.bindparam("namespace")
_ACCEPTED = (
    sa.select(col(SignerRow.key), col(NamespaceRow.quota_bytes))
    .join_from(SignerRow, NamespaceRow, col(NamespaceRow.namespace) == _HERE, isouter=True)
    .where(
        col(SignerRow.namespace).in_([_HERE, ANY]),
        ~sa.exists().where(
            col(RevokedSignerRow.key) == col(SignerRow.key),
            col(RevokedSignerRow.namespace).in_([_HERE, ANY]),
        ),
    )
    .distinct()
)


class Signers(Rows):
    """Keys whose signatures a namespace accepts."""

    def add(self, signer: SignerRecord, now: int) -> None:
        """Adds a signer unless it is there."""
        insert_unless_there(
            self._session,
            SignerRow,
            namespace=signer.namespace,
            key=signer.key,
            label=signer.label,
            created=now,
        )

    def remove(self, namespace: str, key: str) -> bool:
        """Removes a signer and returns whether it was there."""
        row = sa.delete(SignerRow).where(col(SignerRow.namespace) == namespace, col(SignerRow.key) == key)
        return bool(self._change(row))

    def accepted(self, namespace: str) -> tuple[list[str], int | None]:
        """Returns the keys that may sign for ``namespace``, its own and those of ``*`` without the revoked
        ones, and the quota of its policy in bytes for a publication; the quota is ``None`` also where no one
        may sign."""
        rows = run_on_driver(self._session.connection(), _ACCEPTED, {"namespace": namespace}).fetchall()
        return [key for key, _ in rows], rows[0][1] if rows else None

    def all(self, namespace: str) -> list[SignerRecord]:
        """Returns the signers of ``namespace``; for ``*`` all."""
        query = select(SignerRow).order_by(col(SignerRow.namespace), col(SignerRow.created))
        query = within(query, col(SignerRow.namespace), namespace)
        return [SignerRecord(row.namespace, row.key, row.label) for row in self._session.exec(query)]


class RevokedSigners(Rows):
    """Keys that were revoked, in one namespace or in all. The key of such a row counts as no signer,
    whatever other rows say."""

    def add(self, row: RevokedSigner) -> bool:
        """Adds a revoked key; returns false, and keeps the first time and reason, if it is there."""
        return insert_unless_there(
            self._session,
            RevokedSignerRow,
            namespace=row.namespace,
            key=row.key,
            revoked=row.revoked,
            why=row.why,
            by=row.by,
        )

    def remove(self, namespace: str, key: str) -> bool:
        """Removes a revoked key and returns whether it was there."""
        row = sa.delete(RevokedSignerRow).where(
            col(RevokedSignerRow.namespace) == namespace, col(RevokedSignerRow.key) == key
        )
        return bool(self._change(row))

    def all(self, namespace: str) -> list[RevokedSigner]:
        """Returns the keys that ``namespace`` refuses, with those that all refuse; for ``*`` all rows."""
        query = select(RevokedSignerRow).order_by(
            col(RevokedSignerRow.revoked), col(RevokedSignerRow.namespace), col(RevokedSignerRow.key)
        )
        if namespace != ANY:
            query = query.where(col(RevokedSignerRow.namespace).in_([namespace, ANY]))
        return [
            RevokedSigner(row.namespace, row.key, row.revoked, row.why, row.by)
            for row in self._session.exec(query)
        ]

    def names(self, key: str, namespace: str) -> list[WithheldName]:
        """Returns the names and lanes under which the key signed revisions, with their number."""
        query = (
            sa.select(
                col(EntryRow.namespace),
                col(EntryRow.name),
                col(EntryRow.lane),
                sa.func.count().label("revisions"),
                sa.func.max(col(RevisionRow.last_used)).label("offered"),
            )
            .join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .where(*signed_by(key, namespace))
            .group_by(col(EntryRow.namespace), col(EntryRow.name), col(EntryRow.lane))
            .order_by(col(EntryRow.namespace), col(EntryRow.name), col(EntryRow.lane))
        )
        return [
            WithheldName(
                Namespace(row.namespace),
                ShortName(row.name),
                row.revisions,
                Lane(row.lane) if row.lane else None,
                row.offered,
            )
            for row in self._run(query)
        ]


def signed_by(key: str, namespace: str) -> list[Any]:
    """Returns the conditions on the revisions that ``key`` signed in ``namespace``; for ``*`` in all."""
    conditions = [col(RevisionRow.signer) == key]
    if namespace != ANY:
        conditions.append(col(EntryRow.namespace) == namespace)
    return conditions


def revoked_why(signer: Any, namespace: Any) -> Any:
    """Returns the subquery for the reason why ``signer`` is revoked in ``namespace``; NULL if it is not.
    Both are columns of the query around it."""
    return (
        sa.select(sa.func.max(col(RevokedSignerRow.why)))
        .where(
            col(RevokedSignerRow.key) == signer,
            col(RevokedSignerRow.namespace).in_([namespace, sa.literal_column(f"'{ANY}'")]),
        )
        .scalar_subquery()
    )


def signer_removed(signer: Any, namespace: Any) -> Any:
    """Returns the condition that ``namespace`` accepts ``signer`` no more. Both are columns of the query
    around it."""
    accepted = sa.exists().where(
        col(SignerRow.key) == signer,
        col(SignerRow.namespace).in_([namespace, sa.literal_column(f"'{ANY}'")]),
    )
    return sa.not_(accepted)
