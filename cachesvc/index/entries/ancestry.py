"""Store the ancestors of revisions, and find what a withdrawal reaches through them.

Each revision has a row for every ancestor, near or far, so that no query follows a chain. What is withheld
because of an ancestor is marked nowhere: it is withheld as long as the ancestor is withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.access import ANY
from cachesvc.schema.entries import Descendant
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.manifest.ancestors import MAX_ANCESTORS, Ancestor, in_order
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

from ..sql import Rows, insert_new, within
from ..tables import AncestorRow, EntryRow, RevisionRow, RevokedSignerRow, WithdrawalRow

_BATCH = 500
"""Revisions in one statement."""
_MOST_ROWS = 20 * MAX_ANCESTORS
"""Rows of ancestors that one commit reads, at most: some 50 ms, in which SQLite lets no one else write."""


class Ancestry(Rows):
    """The ancestors of revisions. An ancestor need not exist: it may be deleted, or of another registry."""

    def of(self, manifest: Manifest) -> tuple[Ancestor, ...]:
        """Return the ancestors that a manifest names, and those that they have here. Of a revision that is
        here, this registry knows better than a manifest where it is and who signed it.

        Raise ``InvalidRequest`` for more than ``MAX_ANCESTORS``, or if they have so many rows that to look
        would hold up others.
        """
        named = manifest.ancestors or ()
        known: list[Ancestor] = []
        published: dict[str, int] = {}
        columns: tuple[Any, ...] = (RevisionRow.revision, EntryRow.namespace, RevisionRow.signer)
        query = sa.select(*map(col, columns), col(RevisionRow.published)).join_from(
            RevisionRow, EntryRow, col(EntryRow.entry) == col(RevisionRow.entry)
        )
        for begin in range(0, len(named), _BATCH):
            some = [one.revision for one in named[begin : begin + _BATCH]]
            for row in self._run(query.where(col(RevisionRow.revision).in_(some))):
                known.append(Ancestor(Digest(row[0]), Namespace(row[1]), row[2]))
                published[row[0]] = row[3]
        found = in_order((*known, *self._ancestors_of(published), *named))
        if len(found) > MAX_ANCESTORS:
            raise _too_many(f"{MAX_ANCESTORS}")
        return found

    def _ancestors_of(self, published: Mapping[str, int]) -> list[Ancestor]:
        """Return the ancestors of revisions, each with the time when it was published. One that is an
        ancestor of a newer one has no other ancestors than that: of a long line the newest alone is read."""
        found: dict[str, list[str]] = {}
        descends: dict[str, int] = {}
        """When the newest descendant of a revision was published."""
        left = sorted(published, key=lambda one: (-published[one], one))
        rows, number = 0, 1
        row = AncestorRow
        columns = map(col, (row.revision, row.ancestor, row.namespace, row.signer))
        query = sa.select(*columns).limit(_MOST_ROWS + 1)
        while left:
            some, left = left[:number], left[number:]
            for one, ancestor, *more in self._run(query.where(col(row.revision).in_(some))):
                found.setdefault(ancestor, more)
                descends[ancestor] = max(descends.get(ancestor, 0), published[one])
                rows += 1
            if rows > _MOST_ROWS:
                raise _too_many(f"{_MOST_ROWS} rows")
            left = [one for one in left if descends.get(one, 0) <= published[one]]
            number = min(2 * number, _BATCH)
        return [Ancestor(Digest(one), Namespace(more[0]), more[1]) for one, more in found.items()]

    def add(self, revision: Digest, ancestors: Iterable[Ancestor]) -> None:
        """Record the ancestors of a revision."""
        rows = [
            {"revision": revision, "ancestor": a.revision, "namespace": a.namespace, "signer": a.signer}
            for a in ancestors
        ]
        insert_new(self._session, AncestorRow, rows)

    def withdrawn(self, revision: Digest, namespace: Namespace) -> str | None:
        """Return what `withdrawn_ancestor` says of a revision of a namespace."""
        query = sa.select(withdrawn_ancestor(sa.literal(revision), sa.literal(namespace)))
        found: str | None = self._run(query).scalar()
        return found

    def claimed_namespaces(self, ancestor: Digest) -> list[Namespace]:
        """Return the namespaces where a revision was published, as those say that were made with it."""
        query = sa.select(col(AncestorRow.namespace)).where(col(AncestorRow.ancestor) == ancestor).distinct()
        return sorted(Namespace(row[0]) for row in self._run(query))

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
        query = within(query, col(EntryRow.namespace), namespace)
        return [
            Descendant(
                Digest(row[0]),
                Namespace(row[1]),
                ShortName(row[2]),
                Tag(row[3]),
                Target(row[4]),
                Lane(row[5]) if row[5] else None,
            )
            for row in self._run(query)
        ]


_REVOKED = "its signer was revoked: "


def _too_many(most: str) -> InvalidRequest:
    return InvalidRequest(
        f"ancestors: with their own they are more than the {most} allowed",
        "publish it from a process that restores nothing: cachesvc warm --force",
    )


def withdrawn_ancestor(revision: Any, namespace: Any) -> Any:
    """Return the subquery for a withdrawn ancestor of a revision, of several always the same: its digest, a
    space, and the reason if it is of the same namespace; NULL if there is none. Both are columns of the query
    around it."""
    row, withdrawn, revoked = AncestorRow, WithdrawalRow, RevokedSignerRow

    def told(why: Any) -> Any:
        shown = sa.case((col(row.namespace) == namespace, why), else_=_text(""))
        return col(row.ancestor) + _text(" ") + shown

    of_signer = told(_text(_REVOKED) + col(revoked.why))
    return _withdrawn(revision, namespace, told(col(withdrawn.why)), of_signer)


def withdrawn_since(revision: Any, namespace: Any) -> Any:
    """Return the subquery for the time since which a revision has a withdrawn ancestor; as above."""
    return _withdrawn(revision, namespace, col(WithdrawalRow.since), col(RevokedSignerRow.revoked))


def _withdrawn(revision: Any, namespace: Any, of_revision: Any, of_signer: Any) -> Any:
    """Return the subquery for a value of the first ancestor that was withdrawn, else for one of the first
    whose signer was revoked.

    It searches for what was withdrawn among the ancestors, not the other way round: who publishes decides how
    many ancestors there are, operators how much is withdrawn.
    """
    row, withdrawn, revoked = AncestorRow, WithdrawalRow, RevokedSignerRow
    of_this = col(row.revision) == revision
    reaching = sa.select(col(withdrawn.revision)).where(col(withdrawn.pack).is_not(None))
    by_revision = (
        sa.select(of_revision)
        .join_from(row, withdrawn, col(withdrawn.revision) == col(row.ancestor))
        .where(of_this, col(row.ancestor).in_(reaching))
        .order_by(col(row.ancestor))
        .limit(sa.literal_column("1"))
    )
    by_signer = (
        sa.select(of_signer)
        .join_from(row, revoked, col(revoked.key) == col(row.signer))
        .where(
            of_this,
            col(row.signer).in_(sa.select(col(revoked.key)).correlate(None)),
            col(revoked.namespace).in_([col(row.namespace), namespace, _text(ANY)]),
        )
        .order_by(col(row.signer), col(row.ancestor), col(revoked.namespace))
        .limit(sa.literal_column("1"))
    )
    return sa.func.coalesce(by_revision.scalar_subquery(), by_signer.scalar_subquery())


def _text(text: str) -> Any:
    """Return a text as a part of the statement, which has no value for it then."""
    return sa.literal_column(f"'{text}'", sa.String())
