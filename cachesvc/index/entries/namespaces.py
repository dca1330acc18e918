"""Store namespaces: what each keeps, and how much it holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.domain.access import ANY
from cachesvc.schema.namespaces import BOUNDS, NamespaceRecord, Policy
from cachesvc_client.wire.names import Namespace

from ..sql import Rows, insert_unless_there, within
from ..tables import EntryRow, NamespaceRow, RevisionRow

_QUOTA = sa.select(col(NamespaceRow.quota_bytes)).where(
    col(NamespaceRow.namespace) == sa.bindparam("namespace")
)
_QUOTA_LOCKED = _QUOTA.with_for_update()


@dataclass(frozen=True, slots=True)
class Totals:
    """What namespaces hold together; ``bytes``: of the packs of all revisions."""

    namespaces: int
    entries: int
    revisions: int
    bytes: int


class Namespaces(Rows):
    """The namespaces. The first commit or the first policy makes the row of one."""

    def all(self, namespace: str) -> list[NamespaceRecord]:
        """Returns one namespace, or for ``*`` all of them in alphabetical order, with what they hold."""
        query = select(NamespaceRow).order_by(col(NamespaceRow.namespace))
        query = within(query, col(NamespaceRow.namespace), namespace)
        entries = self._entries(namespace)
        held = self._held(namespace)
        return [
            NamespaceRecord(
                Namespace(row.namespace),
                row.created,
                entries.get(row.namespace, 0),
                *held.get(row.namespace, (0, 0)),
                _policy(row),
                row.require,
            )
            for row in self._session.exec(query)
        ]

    def totals(self, namespace: str) -> Totals:
        """Returns what one namespace holds, or for ``*`` what all of them do, without a look at each."""
        if namespace != ANY:
            rows = self.all(namespace)
            counts = [sum(getattr(row, name) for row in rows) for name in ("entries", "revisions", "bytes")]
            return Totals(len(rows), *counts)
        connection = self._session.connection()
        namespaces, entries = (
            connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in (NamespaceRow, EntryRow)
        )
        sums = sa.select(sa.func.count(), sa.func.sum(col(RevisionRow.pack_size))).select_from(RevisionRow)
        revisions, size = connection.execute(sums).one()
        return Totals(namespaces, entries, revisions, int(size or 0) - sum(self._repeated(ANY).values()))

    def exists(self, namespace: str) -> bool:
        """Returns whether something was published in a namespace, or someone has set its policy."""
        query = select(NamespaceRow.namespace).where(NamespaceRow.namespace == namespace)
        return self._session.exec(query).first() is not None

    def policies(self) -> dict[Namespace, Policy]:
        """Returns what each namespace keeps."""
        return {Namespace(row.namespace): _policy(row) for row in self._session.exec(select(NamespaceRow))}

    def policy(self, namespace: str) -> Policy:
        """Returns what a namespace keeps; an empty policy if it does not exist."""
        row = self._session.exec(select(NamespaceRow).where(NamespaceRow.namespace == namespace)).first()
        return _policy(row) if row else Policy()

    def quota(self, namespace: str, *, lock: bool = False) -> int | None:
        """Returns the quota of the policy, in bytes.

        ``lock``: other transactions that lock the quota wait until this one ends, so that the bytes that are
        compared with the quota do not change.
        """
        query = _QUOTA_LOCKED if lock else _QUOTA
        quota: int | None = self._run(query, {"namespace": namespace}).scalar()
        return quota

    def require(self, namespace: Namespace) -> str | None:
        """Returns what a namespace requires of the builders of its trunk; ``None``: nothing."""
        query = sa.select(col(NamespaceRow.require)).where(col(NamespaceRow.namespace) == namespace)
        require: str | None = self._run(query).scalar()
        return require

    def set_require(self, namespace: Namespace, require: str | None, now: int) -> None:
        """Sets what a namespace requires of the builders of its trunk."""
        self._session.flush()
        insert_unless_there(self._session, NamespaceRow, namespace=namespace, created=now)
        row = sa.update(NamespaceRow).where(col(NamespaceRow.namespace) == namespace)
        self._run(row.values(require=None if require is None else str(require)))

    def keep(self, namespace: Namespace, policy: Policy, now: int) -> None:
        """Sets what a namespace keeps."""
        self._session.flush()
        insert_unless_there(self._session, NamespaceRow, namespace=namespace, created=now)
        values = {name: getattr(policy, name) for name in BOUNDS}
        row = sa.update(NamespaceRow).where(col(NamespaceRow.namespace) == namespace)
        self._run(row.values(**values))

    def bytes(self, namespace: Namespace) -> int:
        """Returns the bytes of the packs of all revisions of a namespace."""
        return self._held(namespace).get(namespace, (0, 0))[1]

    def _entries(self, namespace: str) -> dict[str, int]:
        query = sa.select(col(EntryRow.namespace), sa.func.count()).group_by(col(EntryRow.namespace))
        query = within(query, col(EntryRow.namespace), namespace)
        return {row[0]: row[1] for row in self._run(query)}

    def _held(self, namespace: str) -> dict[str, tuple[int, int]]:
        """Returns (revisions, bytes of their packs) by namespace, of those that have any."""
        query = (
            sa.select(col(EntryRow.namespace), sa.func.count(), sa.func.sum(col(RevisionRow.pack_size)))
            .join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .group_by(col(EntryRow.namespace))
        )
        query = within(query, col(EntryRow.namespace), namespace)
        repeated = self._repeated(namespace)
        return {row[0]: (int(row[1]), int(row[2]) - repeated.get(row[0], 0)) for row in self._run(query)}

    def _repeated(self, namespace: str) -> dict[str, int]:
        """Returns by namespace the bytes of packs that another revision has too, such as one under a tag:
        they are stored once. Which packs these are, the database reads in an index alone."""
        several = sa.select(col(RevisionRow.pack_key)).group_by(col(RevisionRow.pack_key))
        several = several.having(sa.func.count() > 1)
        query = (
            sa.select(col(EntryRow.namespace), sa.func.count(), sa.func.max(col(RevisionRow.pack_size)))
            .join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .where(col(RevisionRow.pack_key).in_(several))
            .group_by(col(EntryRow.namespace), col(RevisionRow.pack_key))
        )
        query = within(query, col(EntryRow.namespace), namespace)
        repeated: Counter[str] = Counter()
        for place, revisions, size in self._run(query):
            repeated[place] += (int(revisions) - 1) * int(size)
        return repeated


def _policy(row: NamespaceRow) -> Policy:
    return Policy(**{name: getattr(row, name) for name in BOUNDS})
