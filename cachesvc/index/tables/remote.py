"""Define the tables of webhooks and of mirrors."""

from __future__ import annotations

import sqlalchemy as sa
from sqlmodel import Field, SQLModel


class WebhookRow(SQLModel, table=True):
    """A receiver of events of ``namespace`` (or ``*``, all). ``events``: those it gets, each between spaces;
    empty: all. ``secret``: the key of its signatures, which has to be known to sign. ``failures``: failed
    tries since the last success; ``retry``: when the next one is. ``busy``: until when one worker sends to
    it."""

    __tablename__ = "webhooks"
    webhook: str = Field(primary_key=True, max_length=40)
    namespace: str = Field(max_length=128)
    url: str = Field(max_length=1000)
    events: str = Field(max_length=500)
    label: str = Field(default="", max_length=200)
    secret: str = Field(max_length=100)
    created: int = Field(sa_type=sa.BigInteger)
    failures: int = 0
    retry: int | None = Field(default=None, sa_type=sa.BigInteger)
    busy: int | None = Field(default=None, sa_type=sa.BigInteger)
    last_delivered: int | None = Field(default=None, sa_type=sa.BigInteger)
    last_error: str = Field(default="", max_length=300)


class DeliveryRow(SQLModel, table=True):
    """An event that a receiver has not got yet; written in the transaction of what happened. ``body``: as it
    is sent. ``due``: when it is tried next. ``dead``: since when it is given up."""

    __tablename__ = "deliveries"
    id: int | None = Field(default=None, primary_key=True)
    webhook: str = Field(max_length=40)
    event: str = Field(max_length=40)
    kind: str = Field(max_length=40)
    at: int = Field(sa_type=sa.BigInteger)
    body: str = Field(sa_type=sa.Text)
    due: int = Field(sa_type=sa.BigInteger)
    tries: int = 0
    dead: int | None = Field(default=None, sa_type=sa.BigInteger)
    __table_args__ = (sa.Index(None, "webhook", "dead", "due"),)


class MirrorRow(SQLModel, table=True):
    """The registry that this one mirrors; no row in a registry that mirrors none. ``looked``: when the last
    look there succeeded."""

    __tablename__ = "mirrors"
    upstream: str = Field(primary_key=True, max_length=500)
    looked: int | None = Field(default=None, sa_type=sa.BigInteger)


class UpstreamTokenRow(SQLModel, table=True):
    """A token that the registry which this one mirrors has confirmed. ``secret_hash``: as in ``tokens``.
    ``token``: what it may do, as JSON. ``checked``: when it was confirmed, to a minute."""

    __tablename__ = "upstream_tokens"
    secret_hash: str = Field(primary_key=True, max_length=64)
    token: str = Field(sa_type=sa.Text)
    checked: int = Field(sa_type=sa.BigInteger, index=True)
