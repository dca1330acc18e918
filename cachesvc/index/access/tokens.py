"""Store tokens."""

from __future__ import annotations

import sqlalchemy as sa
from sqlmodel import col, select

from cachesvc.domain.access import Life, Role, Token
from cachesvc_client.wire.codec import build, plain
from cachesvc_client.wire.errors import Unavailable
from cachesvc_client.wire.manifest.provenance import BuilderIdentity
from cachesvc_client.wire.names import Lane

from ..sql import Rows, take_turns, within
from ..tables import TokenRow


class Tokens(Rows):
    """Bearer tokens, by the hash of their secret."""

    def add(self, token: Token, secret_hash: str, publisher: str | None = None) -> None:
        """Adds a token. ``publisher``: the rule that gives it to a CI job."""
        self._session.add(
            TokenRow(
                token=token.token,
                secret_hash=secret_hash,
                label=token.label,
                role=token.role.name,
                namespace=token.namespace,
                lane=token.lane or "",
                created=token.life.created,
                expires=token.life.expires,
                revoked=token.life.revoked,
                publisher=publisher,
                builder=plain(token.builder) if token.builder else None,
                person=token.person,
            )
        )

    def by_hash(self, secret_hash: str, now: float) -> Token | None:
        """Returns the token of a secret, also of the one before a rotation while that is valid; the token may
        be revoked or expired."""
        row = self._session.exec(select(TokenRow).where(TokenRow.secret_hash == secret_hash)).first()
        if row is None:
            before = (col(TokenRow.previous_hash) == secret_hash, col(TokenRow.previous_until) > now)
            row = self._session.exec(select(TokenRow).where(*before)).first()
        return _token(row) if row else None

    def get(self, token: str) -> Token | None:
        """Returns the token with this public id, if there is one."""
        row = self._session.get(TokenRow, token, populate_existing=True)
        return _token(row) if row else None

    def hashes_of(self, token: str) -> list[str]:
        """Returns the hashes of a token's secrets, which are the keys of its hints."""
        columns = sa.select(col(TokenRow.secret_hash), col(TokenRow.previous_hash))
        rows = self._run(columns.where(col(TokenRow.token) == token))
        return [secret_hash for row in rows for secret_hash in row if secret_hash is not None]

    def rotate(self, token: str, secret_hash: str, previous_until: int) -> None:
        """Gives a token another secret. The one that it has now is valid until ``previous_until``; the one
        before that ends."""
        row = sa.update(TokenRow).where(col(TokenRow.token) == token)
        values = {"previous_hash": col(TokenRow.secret_hash), "previous_until": previous_until}
        self._change(row.values(secret_hash=secret_hash, **values))

    def use(self, token: str, now: int) -> None:
        """Records that a token was used."""
        self._change(sa.update(TokenRow).where(col(TokenRow.token) == token).values(last_used=now))

    def labels(self, tokens: set[str]) -> dict[str, str]:
        """Returns the labels of those of ``tokens`` that there still are."""
        query = select(TokenRow.token, TokenRow.label).where(col(TokenRow.token).in_(tokens))
        return dict(self._session.exec(query).all())

    def all(self, namespace: str) -> list[Token]:
        """Returns the tokens of one namespace, or for ``*`` all; oldest first, with the revoked ones."""
        query = select(TokenRow).order_by(col(TokenRow.created), col(TokenRow.token))
        query = within(query, col(TokenRow.namespace), namespace)
        return [_token(row) for row in self._session.exec(query)]

    def count_expiring(self, now: int, until: int) -> int:
        """Counts the tokens that are valid at ``now`` and expire by ``until``. Those of CI jobs and of logins
        are omitted: they end by themselves, and no one has to renew one."""
        query = sa.select(sa.func.count()).where(
            col(TokenRow.expires) > now,
            col(TokenRow.expires) <= until,
            col(TokenRow.revoked).is_(None),
            col(TokenRow.publisher).is_(None),
            col(TokenRow.person).is_(None),
        )
        return int(self._run(query).scalar() or 0)

    def announce_expiring(self, now: int, until: int) -> list[Token]:
        """Returns the tokens that are valid at ``now`` and expire by ``until``, without those of CI jobs;
        each once for each expiry."""
        expires, announced = col(TokenRow.expires), col(TokenRow.announced)
        query = (
            select(TokenRow)
            .where(expires > now, expires <= until, sa.or_(announced.is_(None), announced != expires))
            .where(col(TokenRow.revoked).is_(None), col(TokenRow.publisher).is_(None))
            .order_by(expires, col(TokenRow.token))
            .with_for_update()
        )
        rows = self._session.exec(query).all()
        for row in rows:
            row.announced = row.expires
        return [_token(row) for row in rows]

    def take_turns(self) -> None:
        """Makes other callers of this method wait until this transaction ends."""
        take_turns(self._session)

    def any_admin(self) -> bool:
        """Returns whether an admin's token was ever made."""
        query = select(TokenRow.token).where(TokenRow.role == Role.admin.name).limit(1)
        return self._session.exec(query).first() is not None

    def revoke(self, token: str, now: int) -> bool:
        """Revokes a token and returns whether there is one; a second call keeps the first time."""
        row = sa.update(TokenRow).where(col(TokenRow.token) == token)
        return bool(self._change(row.values(revoked=sa.func.coalesce(col(TokenRow.revoked), now))))

    def revoke_of(self, publisher: str, now: int) -> list[str]:
        """Revokes the tokens that a rule gave, and returns the hashes of their secrets."""
        rows = (col(TokenRow.publisher) == publisher, col(TokenRow.revoked).is_(None))
        hashes = list(self._session.exec(select(TokenRow.secret_hash).where(*rows)))
        self._change(sa.update(TokenRow).where(*rows).values(revoked=now))
        return hashes

    def forget_given(self, before: int) -> None:
        """Deletes the tokens of CI jobs and of logins that expired before ``before``; the audit log keeps
        them."""
        given = sa.or_(col(TokenRow.publisher).is_not(None), col(TokenRow.person).is_not(None))
        self._change(sa.delete(TokenRow).where(given, col(TokenRow.expires) < before))

    def of_person(self, person: str, now: int) -> list[Token]:
        """Returns the tokens of a person's logins that are valid now, the newest first."""
        rows = (col(TokenRow.person) == person, col(TokenRow.revoked).is_(None), col(TokenRow.expires) > now)
        query = select(TokenRow).where(*rows).order_by(col(TokenRow.created).desc(), col(TokenRow.token))
        return [_token(row) for row in self._session.exec(query)]

    def expire(self, token: str, expires: int | None) -> None:
        """Sets when a token expires."""
        row = sa.update(TokenRow).where(col(TokenRow.token) == token)
        self._change(row.values(expires=expires))


def _token(row: TokenRow) -> Token:
    role = Role.__members__.get(row.role)
    if role is None:
        # During a rolling upgrade: do not guess what the role may do.
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
        life=Life(row.created, row.expires, row.revoked, row.last_used),
        builder=build(BuilderIdentity, row.builder) if row.builder else None,
        of_job=row.publisher is not None,
        person=row.person,
    )
