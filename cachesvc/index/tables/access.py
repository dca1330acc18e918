"""Define the tables of who may do what, and of what operators did."""

from __future__ import annotations

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from .base import DIGEST


class NamespaceRow(SQLModel, table=True):
    """A namespace exists from its first commit on, or from its first policy. What it keeps: ``None`` is
    as the settings say, or without a bound. ``require``: who must have built what its trunk offers
    (``wire.manifest.requirement``)."""

    __tablename__ = "namespaces"
    namespace: str = Field(primary_key=True, max_length=128)
    created: int = Field(sa_type=sa.BigInteger)
    keep_revisions: int | None = None
    keep_days: int | None = None
    unused_days: int | None = None
    keep_bytes: int | None = Field(default=None, sa_type=sa.BigInteger)
    quota_bytes: int | None = Field(default=None, sa_type=sa.BigInteger)
    require: str | None = Field(default=None, max_length=1000)


class SignerRow(SQLModel, table=True):
    """A public key whose signatures ``namespace`` (or ``*``, all) accepts at commit."""

    __tablename__ = "signers"
    namespace: str = Field(primary_key=True, max_length=128)
    key: str = Field(primary_key=True, max_length=128)
    label: str = Field(default="", max_length=200)
    created: int = Field(sa_type=sa.BigInteger)


class RevokedSignerRow(SQLModel, table=True):
    """A key whose signatures ``namespace`` (or ``*``, all) refuses for good: its revisions are offered to
    no one, and adding it as a signer again takes a word more. ``by``: a token's id, or ``console``."""

    __tablename__ = "revoked_signers"
    namespace: str = Field(primary_key=True, max_length=128)
    key: str = Field(primary_key=True, max_length=128)
    revoked: int = Field(sa_type=sa.BigInteger)
    why: str = Field(default="", max_length=300)
    by: str = Field(max_length=40)


class TokenRow(SQLModel, table=True):
    """A bearer token. ``secret_hash``: sha256 of the secret, which is random and so needs no slow hash.
    ``publisher``: the rule that gave it to a CI job; ``None`` for a token that an administrator made.
    ``builder``: that job, as its verified token described it (``wire.manifest.provenance.BuilderIdentity``).
    ``last_used``: to an hour; ``None``: not since this column is there. ``previous_hash``: of the secret
    before a rotation, which is valid until ``previous_until``. ``announced``: the expiry of which receivers
    of webhooks were told. ``person``: who logged in to the web page at an identity provider, as ``ISSUER
    SUBJECT``; the token of a login has no secret, and ``secret_hash`` is the hash of nothing."""

    __tablename__ = "tokens"
    token: str = Field(primary_key=True, max_length=40)
    secret_hash: str = Field(max_length=64, unique=True)
    label: str = Field(max_length=200)
    role: str = Field(max_length=10)
    namespace: str = Field(max_length=128)
    lane: str = Field(default="", max_length=128)
    created: int = Field(sa_type=sa.BigInteger)
    expires: int | None = Field(default=None, sa_type=sa.BigInteger)
    revoked: int | None = Field(default=None, sa_type=sa.BigInteger)
    publisher: str | None = Field(default=None, max_length=40, index=True)
    builder: dict[str, str] | None = Field(default=None, sa_type=sa.JSON(none_as_null=True))
    last_used: int | None = Field(default=None, sa_type=sa.BigInteger)
    previous_hash: str | None = Field(default=None, max_length=64, unique=True, index=True)
    previous_until: int | None = Field(default=None, sa_type=sa.BigInteger)
    announced: int | None = Field(default=None, sa_type=sa.BigInteger)
    person: str | None = Field(default=None, max_length=800, index=True)


class SessionRow(SQLModel, table=True):
    """A login to the web page. ``session_hash``: sha256 of the random secret in the browser's cookie.
    ``token``: whose rights the session has; they are read from the token's own row at each request."""

    __tablename__ = "sessions"
    session_hash: str = Field(primary_key=True, max_length=64)
    token: str = Field(max_length=40, index=True)
    expires: int = Field(sa_type=sa.BigInteger, index=True)


class PublisherRow(SQLModel, table=True):
    """A rule by which a CI job gets a token of minutes (``schema.publishers.PublisherRequest``). ``lane``:
    ``None`` is the trunk; it may have ``{number}`` in it."""

    __tablename__ = "publishers"
    publisher: str = Field(primary_key=True, max_length=40)
    issuer: str = Field(max_length=500, index=True)
    audience: str = Field(max_length=500)
    claims: dict[str, str] = Field(sa_type=sa.JSON)
    namespace: str = Field(max_length=128)
    lane: str | None = Field(default=None, max_length=128)
    role: str = Field(max_length=10)
    minutes: int
    label: str = Field(default="", max_length=500)
    created: int = Field(sa_type=sa.BigInteger)


class JobTokenRow(SQLModel, table=True):
    """A token of a CI job that was exchanged, so that no one exchanges it again before it ``expires``."""

    __tablename__ = "job_tokens"
    use: str = Field(primary_key=True, max_length=DIGEST)
    expires: int = Field(sa_type=sa.BigInteger, index=True)


class TrustFileRow(SQLModel, table=True):
    """A file of trust metadata, as it was signed. ``expires``: when its signature ends to count."""

    __tablename__ = "trust_files"
    role: str = Field(primary_key=True, max_length=20)
    version: int = Field(primary_key=True, sa_type=sa.BigInteger)
    expires: int = Field(sa_type=sa.BigInteger)
    data: str = Field(sa_type=sa.Text)
    created: int = Field(sa_type=sa.BigInteger)


class AuditRow(SQLModel, table=True):
    """What an operator did, in the transaction that did it. ``by``: a token's id, or ``console``."""

    __tablename__ = "audit"
    id: int | None = Field(default=None, primary_key=True)
    at: int = Field(sa_type=sa.BigInteger, index=True)
    by: str = Field(max_length=40)
    action: str = Field(max_length=40)
    namespace: str = Field(max_length=128)
    subject: str = Field(max_length=200)
    details: dict[str, str] = Field(sa_type=sa.JSON)
