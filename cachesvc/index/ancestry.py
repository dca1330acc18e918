"""Store the ancestors of revisions, and find what a withdrawal reaches through them.

Each revision has a row for every ancestor, near or far, so that no query follows a chain. What is withheld
because of an ancestor is marked nowhere: it is withheld as long as the ancestor is withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from cachesvc.domain.access import ANY
from cachesvc_client.wire.admin import Descendant
from cachesvc_client.wire.ancestors import MAX_ANCESTORS, Ancestor, in_order
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target
from cachesvc_client.wire.records import Manifest

from .sql import upsert
from .tables import AncestorRow, EntryRow, RevisionRow, RevokedSignerRow, WithdrawalRow

_BATCH = 500
"""Revisions in one statement."""


class Ancestry:
    """The ancestors of revisions. An ancestor need not exist: it may be deleted, or of another registry."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def of(self, manifest: Manifest) -> tuple[Ancestor, ...]:
        """Return the ancestors that a manifest names, and those that they have here. Of a revision that is
        here, this registry knows better than a manifest where it is and who signed it."""
        named = manifest.ancestors or ()
        known: list[Ancestor] = []
        for begin in range(0, len(named), _BATCH):
            some = [one.revision for one in named[begin : begin + _BATCH]]
            here = (
                sa.select(col(RevisionRow.revision), col(EntryRow.namespace), col(RevisionRow.signer))
                .join_from(RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
                .where(col(RevisionRow.revision).in_(some))
            )
            theirs = (
                sa.select(col(AncestorRow.ancestor), col(AncestorRow.namespace), col(AncestorRow.signer))
                .where(col(AncestorRow.revision).in_(some))
                .distinct()
                .limit(MAX_ANCESTORS + 1)
            )
            for query in (here, theirs):
                rows = self._session.connection().execute(query)
                known += [Ancestor(Digest(row[0]), Namespace(row[1]), row[2]) for row in rows]
        return in_order((*known, *named))

    def add(self, revision: Digest, ancestors: Iterable[Ancestor]) -> None:
        """Record the ancestors of a revision; of more than there may be the first ones."""
        connection = self._session.connection()
        insert = upsert(AncestorRow.__table__, connection.dialect.name)  # type: ignore[attr-defined]
        rows = [
            {
                "revision": revision,
                "ancestor": one.revision,
                "namespace": one.namespace,
                "signer": one.signer,
            }
            for one in ancestors
        ][:MAX_ANCESTORS]
        if rows:
            connection.execute(insert.on_conflict_do_nothing(), rows)

    def withdrawn_among(self, ancestors: Sequence[Ancestor], namespace: Namespace) -> str | None:
        """Return the first withdrawn one of the ancestors of a revision in a namespace: see
        `withdrawn_ancestor`."""
        connection = self._session.connection()
        for begin in range(0, len(ancestors), _BATCH):
            some = ancestors[begin : begin + _BATCH]
            withdrawn = sa.select(col(WithdrawalRow.revision), col(WithdrawalRow.why)).where(
                col(WithdrawalRow.revision).in_([one.revision for one in some]),
                col(WithdrawalRow.pack).is_not(None),
            )
            whys = {row[0]: row[1] for row in connection.execute(withdrawn)}
            revoked = sa.select(
                *map(col, (RevokedSignerRow.key, RevokedSignerRow.namespace, RevokedSignerRow.why))
            ).where(col(RevokedSignerRow.key).in_({one.signer for one in some}))
            keys = {(row[0], row[1]): row[2] for row in connection.execute(revoked)}
            for one in some:
                why = whys.get(one.revision)
                for where in (one.namespace, namespace, ANY):
                    if why is None and (one.signer, where) in keys:
                        why = _REVOKED + keys[one.signer, where]
                if why is not None:
                    return f"{one.revision} {why if one.namespace == namespace else ''}"
        return None

    def descendants(self, revisions: Sequence[Digest], namespace: str, limit: int) -> list[Descendant]:
        """Return the revisions that have one of ``revisions`` as an ancestor, in one namespace or for ``*``
        in all; the newest first."""
        return self._descendants(col(AncestorRow.ancestor).in_(revisions), namespace, limit)

    def descendants_of_signer(self, key: str, namespace: str, limit: int) -> list[Descendant]:
        """Return the revisions that a revocation of ``key`` in a namespace (``*``: in all) reaches through
        their ancestors; the newest first."""
        signed = col(AncestorRow.signer) == key
        if namespace != ANY:
            places = (col(AncestorRow.namespace), col(EntryRow.namespace))
            signed = sa.and_(signed, sa.or_(*(place == namespace for place in places)))
        return self._descendants(signed, ANY, limit)

    def _descendants(self, which: Any, namespace: str, limit: int) -> list[Descendant]:
        columns = (EntryRow.namespace, EntryRow.name, EntryRow.tag, EntryRow.target, EntryRow.lane)
        query = (
            sa.select(col(RevisionRow.revision), *map(col, columns), col(RevisionRow.published))
            .join_from(AncestorRow, RevisionRow, col(RevisionRow.revision) == col(AncestorRow.revision))
            .join(EntryRow, col(EntryRow.entry) == col(RevisionRow.entry))
            .where(which)
            .distinct()
            .order_by(col(RevisionRow.published).desc(), col(RevisionRow.revision))
            .limit(limit)
        )
        if namespace != ANY:
            query = query.where(col(EntryRow.namespace) == namespace)
        return [
            Descendant(
                Digest(row[0]),
                Namespace(row[1]),
                ShortName(row[2]),
                Tag(row[3]),
                Target(row[4]),
                Lane(row[5]) if row[5] else None,
            )
            for row in self._session.connection().execute(query)
        ]


_REVOKED = "its signer was revoked: "


def withdrawn_ancestor(revision: Any, namespace: Any) -> Any:
    """Return the subquery for the first withdrawn ancestor of a revision: its digest, a space, and the reason
    if it is of the same namespace; NULL if there is none. Both are columns of the query around it."""
    return _withdrawn(revision, namespace, since=False)


def withdrawn_since(revision: Any, namespace: Any) -> Any:
    """Return the subquery for the time since which a revision has a withdrawn ancestor; as above."""
    return _withdrawn(revision, namespace, since=True)


def _withdrawn(revision: Any, namespace: Any, *, since: bool) -> Any:
    row, withdrawn, revoked = AncestorRow, WithdrawalRow, RevokedSignerRow
    why = sa.func.coalesce(col(withdrawn.why), _text(_REVOKED) + col(revoked.why))
    shown = sa.case((col(row.namespace) == namespace, why), else_=_text(""))
    value = col(row.ancestor) + _text(" ") + shown
    if since:
        value = sa.func.coalesce(col(withdrawn.since), col(revoked.revoked))
    here = col(revoked.namespace).in_([col(row.namespace), namespace, _text(ANY)])
    return (
        sa.select(sa.func.min(value))
        .select_from(row)
        .outerjoin(
            withdrawn,
            sa.and_(col(withdrawn.revision) == col(row.ancestor), col(withdrawn.pack).is_not(None)),
        )
        .outerjoin(revoked, sa.and_(col(revoked.key) == col(row.signer), here))
        .where(
            col(row.revision) == revision,
            sa.or_(col(withdrawn.revision).is_not(None), col(revoked.key).is_not(None)),
        )
        .scalar_subquery()
    )


def _text(text: str) -> Any:
    """Return a text as a part of the statement, which has no value for it then."""
    return sa.literal_column(f"'{text}'", sa.String())
