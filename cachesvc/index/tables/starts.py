"""Define the tables of what starts of services reported."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from .base import DIGEST, of_withheld_rows

COMPILED = sa.text("inert + partial > 0")
"""The condition of an index: a query that is to use it has it word by word."""


class OutcomeSums(SQLModel):
    """The columns of a table that adds up outcomes: starts by state, and seconds saved and spent."""

    hit: int = Field(default=0, sa_type=sa.BigInteger)
    partial: int = Field(default=0, sa_type=sa.BigInteger)
    inert: int = Field(default=0, sa_type=sa.BigInteger)
    miss: int = Field(default=0, sa_type=sa.BigInteger)
    unused: int = Field(default=0, sa_type=sa.BigInteger)
    saved: float = 0.0
    spent: float = 0.0


class UsefulnessRow(OutcomeSums, table=True):
    """The outcomes of the starts of one environment (a fingerprint partition) with one revision.

    Clients report them: counts and seconds decide nothing but ``quarantined``, and that only by the rule of
    ``domain.usefulness``. ``facts``: those by which people recognise the environment.
    """

    __tablename__ = "usefulness"
    revision: str = Field(
        primary_key=True, max_length=DIGEST, foreign_key="revisions.revision", ondelete="CASCADE"
    )
    environment: str = Field(primary_key=True, max_length=DIGEST)
    facts: dict[str, str] = Field(sa_type=sa.JSON)
    first_seen: int = Field(sa_type=sa.BigInteger)
    last_seen: int = Field(sa_type=sa.BigInteger, index=True)
    quarantined: int | None = Field(default=None, sa_type=sa.BigInteger)
    why: str = Field(default="", max_length=500)
    # The ranking by seconds saved reads its second index alone, and not the facts.
    # The third has the few rows whose starts compiled although an entry fitted: misses read no others.
    __table_args__ = (
        of_withheld_rows(),
        sa.Index(None, "revision", "saved"),
        sa.Index("ix_usefulness_compiled", "last_seen", sqlite_where=COMPILED, postgresql_where=COMPILED),
    )


class DailyStartsRow(OutcomeSums, table=True):
    """The outcomes of the starts that a namespace's services reported on one day: a start counts once for
    each revision that it installed, as in ``usefulness``. ``day``: days of UTC since 1970."""

    __tablename__ = "daily_starts"
    namespace: str = Field(primary_key=True, max_length=128)
    day: int = Field(primary_key=True, sa_type=sa.BigInteger, index=True)


class EnvironmentRow(SQLModel, table=True):
    """The facts of an environment whose services reported a start, so that the web page can explain it
    later. ``environment``: as in ``usefulness``. ``fingerprint``: what a client said; trusted for nothing.
    ``seen``: when it was last written down, to an hour."""

    __tablename__ = "environments"
    namespace: str = Field(primary_key=True, max_length=128)
    environment: str = Field(primary_key=True, max_length=DIGEST)
    fingerprint: dict[str, Any] = Field(sa_type=sa.JSON)
    seen: int = Field(sa_type=sa.BigInteger, index=True)
    __table_args__ = (sa.Index(None, "namespace", "seen"),)


class ColdStartRow(SQLModel, table=True):
    """The starts of one environment that asked for a name, were offered nothing, and compiled. ``lane``:
    empty for the trunk. ``environment``: of the facts that every process knows
    (``partitions.known_partition``). ``fingerprint`` and ``models``: what clients said; trusted for nothing.
    ``spent``: seconds of compiling."""

    __tablename__ = "cold_starts"
    namespace: str = Field(primary_key=True, max_length=128)
    name: str = Field(primary_key=True, max_length=1100)
    tag: str = Field(primary_key=True, max_length=128)
    lane: str = Field(primary_key=True, max_length=128)
    environment: str = Field(primary_key=True, max_length=DIGEST)
    fingerprint: dict[str, Any] = Field(sa_type=sa.JSON)
    models: list[str] = Field(sa_type=sa.JSON)
    starts: int = Field(sa_type=sa.BigInteger)
    spent: float = 0.0
    first_seen: int = Field(sa_type=sa.BigInteger)
    last_seen: int = Field(sa_type=sa.BigInteger, index=True)
    __table_args__ = (sa.Index(None, "namespace", "last_seen"),)


class InertHostRow(SQLModel, table=True):
    """A node that reported the revision inert since the last hit of its environment; few are kept."""

    __tablename__ = "inert_hosts"
    revision: str = Field(
        primary_key=True, max_length=DIGEST, foreign_key="revisions.revision", ondelete="CASCADE"
    )
    environment: str = Field(primary_key=True, max_length=DIGEST)
    token: str = Field(primary_key=True, max_length=40)
    node: str = Field(primary_key=True, max_length=32)
    seen: int = Field(sa_type=sa.BigInteger)


class RevisionNodeRow(SQLModel, table=True):
    """A node that reported a start with the revision in the last 30 days, so that an operator knows which
    nodes have what a leaked key signed. ``node``: digits that the client chose (``wire.requests.reports``),
    no name of a machine; trusted for nothing. ``state``: of its last report. ``seen``: to an hour."""

    __tablename__ = "revision_nodes"
    revision: str = Field(
        primary_key=True, max_length=DIGEST, foreign_key="revisions.revision", ondelete="CASCADE"
    )
    node: str = Field(primary_key=True, max_length=32)
    token: str = Field(max_length=40)
    state: str = Field(max_length=10)
    seen: int = Field(sa_type=sa.BigInteger, index=True)
