"""List heads for mirrors, and store what a mirror knows of the registry that it mirrors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.domain.offers import OfferFacts
from cachesvc_client.wire.digest import Digest

from .entries.places import OFFER_FACTS
from .sql import Rows, insert_unless_there, upsert, within
from .tables import (
    EntryRow,
    MirrorRow,
    NamespaceRow,
    ObjectRow,
    RevisionRow,
    RevokedSignerRow,
    SignerRow,
    TokenRow,
    TrustFileRow,
    UpstreamTokenRow,
    WithdrawalRow,
)

ABSENT = "absent/"
"""Beginning of the key of a pack that a mirror does not have yet: an object without bytes."""


@dataclass(frozen=True, slots=True)
class ListedHead(OfferFacts):
    """A head as mirrors see it, with what decides whether it is offered."""

    entry: Digest
    sequence: int
    published: int


class MirroredHead(NamedTuple):
    """A head that a mirror has. ``why``: why it is withheld; ``None`` if it is offered."""

    revision: Digest
    sequence: int
    why: str | None


class Mirrors(Rows):
    """What other registries mirror of this one, and what this one mirrors."""

    # What others mirror.

    def mark(self) -> str:
        """Returns a text that changes with each change of a head, of what withholds heads, and of signers.

        Sums stand for the rows of entries. Several changes together can leave every sum as it was, so a
        mirror also asks without a mark, from time to time.
        """
        connection, first = self._session.connection(), sa.text("1")
        sums = sa.select(
            sa.func.count(),
            sa.func.sum(col(EntryRow.head_sequence) % sa.literal_column("2147483647")),
            sa.func.sum(col(EntryRow.published)),
        ).where(col(EntryRow.head).is_not(None))
        withheld = sa.select(col(RevisionRow.revision), col(RevisionRow.quarantine_why)).where(
            col(RevisionRow.quarantined).is_not(None)
        )
        reaching = sa.select(col(WithdrawalRow.revision)).where(col(WithdrawalRow.pack).is_not(None))
        signers = sa.select(col(SignerRow.namespace), col(SignerRow.key)).order_by(first, sa.text("2"))
        revoked = sa.select(
            col(RevokedSignerRow.namespace), col(RevokedSignerRow.key), col(RevokedSignerRow.why)
        ).order_by(first, sa.text("2"))
        require = sa.select(col(NamespaceRow.namespace), col(NamespaceRow.require)).where(
            col(NamespaceRow.require).is_not(None)
        )
        facts = [
            [[_number(value) for value in row] for row in connection.execute(query)]
            for query in (
                sums,
                withheld.order_by(first),
                reaching.order_by(first),
                signers,
                revoked,
                require.order_by(first),
            )
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def listing(
        self, namespace: str, lanes: Sequence[str] | None, after: str, limit: int, now: float
    ) -> list[ListedHead]:
        """Returns heads of one namespace, or for ``*`` of all, in the order of their entries: those behind
        ``after`` whose signed statements have not expired. ``lanes=None``: every lane."""
        query = _LISTED.where(
            col(EntryRow.entry) > after,
            sa.or_(col(RevisionRow.expires).is_(None), col(RevisionRow.expires) > now),
        )
        query = within(query, col(EntryRow.namespace), namespace)
        if lanes is not None:
            query = query.where(col(EntryRow.lane).in_(lanes))
        rows = self._run(query.limit(limit))
        return [ListedHead(*row) for row in rows]

    # What this registry mirrors.

    def upstream(self) -> tuple[str, int | None] | None:
        """Returns the address that this registry mirrors, and when the last look there succeeded; ``None`` in
        a registry that mirrors none."""
        row = self._session.exec(select(MirrorRow)).first()
        return (row.upstream, row.looked) if row is not None else None

    def note_look(self, upstream: str, looked: int | None) -> None:
        """Records what is mirrored, and when a look succeeded."""
        self._change(sa.delete(MirrorRow).where(col(MirrorRow.upstream) != upstream))
        if insert_unless_there(self._session, MirrorRow, upstream=upstream, looked=looked):
            return
        self._change(sa.update(MirrorRow).values(looked=looked))

    def holds_registry(self) -> bool:
        """Returns whether this index is in use: as a registry of its own, or as a mirror."""
        tables = (EntryRow, TrustFileRow, TokenRow, SignerRow)
        return any(self._session.exec(select(table).limit(1)).first() is not None for table in tables)

    def heads(self, after: str, until: str | None) -> dict[Digest, MirroredHead]:
        """Returns the heads that are here of the entries behind ``after``, up to ``until``."""
        query = (
            sa.select(
                col(EntryRow.entry),
                col(EntryRow.head),
                col(EntryRow.head_sequence),
                col(RevisionRow.quarantined),
                col(RevisionRow.quarantine_why),
            )
            .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
            .where(col(EntryRow.entry) > after)
        )
        if until is not None:
            query = query.where(col(EntryRow.entry) <= until)
        return {
            Digest(row[0]): MirroredHead(Digest(row[1]), row[2], None if row[3] is None else row[4] or "")
            for row in self._run(query)
        }

    def replace_files(self, role: str) -> None:
        """Removes the trust files of a role that is not the root, for the one that takes their place."""
        self._change(sa.delete(TrustFileRow).where(col(TrustFileRow.role) == role))

    def place_pack(self, revision: Digest, before: str, key: str) -> bool:
        """Moves a revision from one object to another; false if it is not at the first one (any more)."""
        row = sa.update(RevisionRow).where(
            col(RevisionRow.revision) == revision, col(RevisionRow.pack_key) == before
        )
        return bool(self._change(row.values(pack_key=key)))

    def packs(self) -> list[tuple[Digest, str, int]]:
        """Returns (revision, key, bytes) of the packs that are here, those that were offered longest ago
        first."""
        query = (
            sa.select(col(RevisionRow.revision), col(RevisionRow.pack_key), col(RevisionRow.pack_size))
            .where(col(RevisionRow.pack_key).not_like(f"{ABSENT}%"))
            .order_by(sa.func.coalesce(col(RevisionRow.last_used), 0), col(RevisionRow.revision))
        )
        return [(Digest(row[0]), row[1], row[2]) for row in self._run(query)]

    def pack_totals(self) -> tuple[int, int]:
        """Returns number and bytes of the packs that are here."""
        query = sa.select(sa.func.count(), sa.func.sum(col(RevisionRow.pack_size))).where(
            col(RevisionRow.pack_key).not_like(f"{ABSENT}%")
        )
        number, size = self._run(query).one()
        return int(number), int(size or 0)

    def unplaced(self, key: str) -> None:
        """Adds the row of an object without bytes, which a revision names until its pack is here."""
        self._session.flush()
        values = {"key": key, "leased_until": 0, "state": "live"}
        self._run(sa.insert(ObjectRow), values)

    # Tokens of the registry that is mirrored.

    def token(self, secret_hash: str) -> tuple[str, int] | None:
        """Returns (token as JSON, when it was confirmed) of a secret that was confirmed."""
        row = self._session.get(UpstreamTokenRow, secret_hash, populate_existing=True)
        return (row.token, row.checked) if row is not None else None

    def keep_token(self, secret_hash: str, token: str, checked: int) -> None:
        """Records that a token was confirmed."""
        values = {"token": token, "checked": checked}
        insert = upsert(self._session, UpstreamTokenRow).values(secret_hash=secret_hash, **values)
        self._run(insert.on_conflict_do_update(index_elements=["secret_hash"], set_=values))

    def forget_token(self, secret_hash: str) -> None:
        """Forgets a token that counts no more."""
        self._change(
            sa.delete(UpstreamTokenRow).where(col(UpstreamTokenRow.secret_hash) == secret_hash),
        )

    def forget_tokens(self, before: int) -> None:
        """Forgets the tokens that were not confirmed since ``before``."""
        self._change(sa.delete(UpstreamTokenRow).where(col(UpstreamTokenRow.checked) < before))


def _number(value: Any) -> Any:
    """Returns a sum as an integer: PostgreSQL's sums are decimals."""
    return value if value is None or isinstance(value, str) else int(value)


_LISTED: Any = (
    sa.select(
        col(EntryRow.head),
        col(EntryRow.lane),
        *OFFER_FACTS,
        *map(col, (EntryRow.entry, EntryRow.head_sequence, EntryRow.published)),
    )
    .join_from(EntryRow, RevisionRow, col(RevisionRow.revision) == col(EntryRow.head))
    .order_by(col(EntryRow.entry))
)
"""Selects the fields of a `ListedHead` in their order."""
