"""Tokens and signers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from cachesvc.domain.access import ANY, Role, Token
from cachesvc_client.wire.errors import Unavailable
from cachesvc_client.wire.names import Lane
from cachesvc_client.wire.protocol import SignerRecord

from .sql import changed, driven, insert_unless_there, take_turns
from .tables import NamespaceRow, SignerRow, TokenRow


class Tokens:
    """Bearer tokens, found by the hash of their secret."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, token: Token, secret_hash: str) -> None:
        """A new token."""
        self._session.add(
            TokenRow(
                token=token.token,
                secret_hash=secret_hash,
                label=token.label,
                role=token.role.name,
                namespace=token.namespace,
                lane=token.lane or "",
                created=token.created,
                expires=token.expires,
                revoked=token.revoked,
            )
        )

    def by_hash(self, secret_hash: str) -> Token | None:
        """The token of a secret; it may be revoked or expired."""
        row = self._session.exec(select(TokenRow).where(TokenRow.secret_hash == secret_hash)).first()
        return _token(row) if row else None

    def get(self, token: str) -> Token | None:
        """By its public id."""
        row = self._session.get(TokenRow, token, populate_existing=True)
        return _token(row) if row else None

    def hash_of(self, token: str) -> str | None:
        """The hash of its secret, under which hints are kept."""
        return self._session.exec(select(TokenRow.secret_hash).where(TokenRow.token == token)).first()

    def all(self, namespace: str) -> list[Token]:
        """Those of one namespace, or of ``*``: all; oldest first, revoked ones included."""
        query = select(TokenRow).order_by(col(TokenRow.created), col(TokenRow.token))
        if namespace != ANY:
            query = query.where(TokenRow.namespace == namespace)
        return [_token(row) for row in self._session.exec(query)]

    def take_turns(self) -> None:
        """Until this transaction ends nobody else gets past this call."""
        take_turns(self._session)

    def any_admin(self) -> bool:
        """Whether an admin's token was ever made."""
        query = select(TokenRow.token).where(TokenRow.role == Role.admin.name).limit(1)
        return self._session.exec(query).first() is not None

    def revoke(self, token: str, now: int) -> bool:
        """Whether it was there; revoking twice keeps the first time."""
        found = sa.update(TokenRow).where(col(TokenRow.token) == token)
        return bool(
            changed(self._session, found.values(revoked=sa.func.coalesce(col(TokenRow.revoked), now)))
        )

    def expire(self, token: str, expires: int | None) -> None:
        """Sets when it ends by itself."""
        found = sa.update(TokenRow).where(col(TokenRow.token) == token)
        changed(self._session, found.values(expires=expires))


_HERE: Any = sa.bindparam("namespace")
_ACCEPTED = (
    sa.select(col(SignerRow.key), col(NamespaceRow.quota_bytes))
    .join_from(SignerRow, NamespaceRow, col(NamespaceRow.namespace) == _HERE, isouter=True)
    .where(col(SignerRow.namespace).in_([_HERE, ANY]))
    .distinct()
)


class Signers:
    """Keys whose signatures a namespace accepts."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, signer: SignerRecord, now: int) -> None:
        """Adds it unless it is there."""
        insert_unless_there(
            self._session,
            SignerRow,
            namespace=signer.namespace,
            key=signer.key,
            label=signer.label,
            created=now,
        )

    def remove(self, namespace: str, key: str) -> bool:
        """Whether it was there."""
        gone = sa.delete(SignerRow).where(col(SignerRow.namespace) == namespace, col(SignerRow.key) == key)
        return bool(changed(self._session, gone))

    def accepted(self, namespace: str) -> tuple[list[str], int | None]:
        """The keys that may sign for ``namespace``, its own and those of ``*``; and, for whoever is about to
        publish, the quota of its policy, in bytes, which is ``None`` also where nobody may sign."""
        rows = driven(self._session.connection(), _ACCEPTED, {"namespace": namespace}).fetchall()
        return [key for key, _ in rows], rows[0][1] if rows else None

    def all(self, namespace: str) -> list[SignerRecord]:
        """Those registered for ``namespace``; of ``*``: all."""
        query = select(SignerRow).order_by(col(SignerRow.namespace), col(SignerRow.created))
        if namespace != ANY:
            query = query.where(SignerRow.namespace == namespace)
        return [SignerRecord(row.namespace, row.key, row.label) for row in self._session.exec(query)]


def _token(row: TokenRow) -> Token:
    role = Role.__members__.get(row.role)
    if role is None:
        # In the midst of a rolling upgrade: no guess what it may do.
        raise Unavailable(
            f"token {row.token} has the role {row.role[:10]!r}, which this replica is too old for",
            "ask again when all replicas are upgraded",
        )
    return Token(
        token=row.token,
        label=row.label,
        role=role,
        namespace=row.namespace,
        lane=Lane(row.lane) if row.lane else None,
        created=row.created,
        expires=row.expires,
        revoked=row.revoked,
    )
