"""Define the tables of entries and revisions, of their bytes, and of what was withdrawn."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from .base import DIGEST, of_withheld_rows


class ObjectRow(SQLModel, table=True):
    """An object of the blob store; the row is there before its first byte.

    ``digest`` and ``size`` hold once all bytes are durable. ``state``: *live*, or *deleting* (no one may
    refer to it any more; GC removes the object, then this row). ``leased_until``: until then GC leaves it.
    ``share``: whose pending bytes these are (``registry.quota``), ``announced`` of them; ``None`` once a
    revision names the object.
    """

    __tablename__ = "objects"
    key: str = Field(primary_key=True, max_length=200)
    digest: str | None = Field(default=None, max_length=DIGEST)
    size: int | None = Field(default=None, sa_type=sa.BigInteger)
    state: str = Field(default="live", max_length=10)
    leased_until: int = Field(sa_type=sa.BigInteger)
    share: str | None = Field(default=None, max_length=300, index=True)
    announced: int | None = Field(default=None, sa_type=sa.BigInteger)
    __table_args__ = (sa.Index(None, "state", "leased_until"),)


class UploadRow(SQLModel, table=True):
    """A promise to publish under a name. ``key``: the object that was received whole, once there is one.

    ``size``: what was declared, which received bytes may not exceed. The row outlives its commit by the
    lease, so that a commit whose answer was lost can be sent again. ``started``: when the upload began.
    """

    __tablename__ = "uploads"
    upload: str = Field(primary_key=True, max_length=40)
    token: str = Field(max_length=40)
    namespace: str = Field(max_length=128)
    name: str = Field(max_length=1100)
    lane: str = Field(default="", max_length=128)
    size: int = Field(sa_type=sa.BigInteger)
    leased_until: int = Field(sa_type=sa.BigInteger, index=True)
    key: str | None = Field(default=None, max_length=200)
    started: int | None = Field(default=None, sa_type=sa.BigInteger)


class ClaimRow(SQLModel, table=True):
    """Who compiles now what ``key`` stands for (``wire.requests.claims.ClaimSubject``). Times: by the
    database's clock.

    ``holder``: empty once it was returned. ``who``: the holder's words, for people; trusted for nothing.
    ``fence``: grows with every holder. ``done``: since this holder took it, a revision for it was published.
    """

    __tablename__ = "claims"
    key: str = Field(primary_key=True, max_length=DIGEST)
    namespace: str = Field(max_length=128)
    name: str = Field(max_length=1100)
    lane: str = Field(max_length=128)
    holder: str = Field(max_length=32)
    who: str = Field(max_length=100)
    token: str = Field(max_length=40)
    fence: int = Field(sa_type=sa.BigInteger)
    taken: int = Field(sa_type=sa.BigInteger)
    expires: int = Field(sa_type=sa.BigInteger, index=True)
    done: bool
    __table_args__ = (sa.Index(None, "token", "expires"),)


class EntryRow(SQLModel, table=True):
    """A line of revisions. ``entry`` is the digest of the columns that follow, up to ``workload``.

    ``dtypes`` and ``shapes``: of the inputs, each between spaces, for searching. ``keyed``: the
    head, whose keys of graphs ``graph_keys`` has, with ``!`` before it if no start may omit it
    (``Manifest.may_wait``).
    """

    __tablename__ = "entries"
    entry: str = Field(primary_key=True, max_length=DIGEST)
    namespace: str = Field(max_length=128)
    lane: str = Field(max_length=128)
    name: str = Field(max_length=1100)
    tag: str = Field(max_length=128)
    target: str = Field(max_length=256)
    partition: str = Field(max_length=DIGEST)
    workload: str = Field(max_length=DIGEST)
    model: str | None = Field(default=None, max_length=DIGEST)
    head: str | None = Field(default=None, max_length=DIGEST)
    head_sequence: int = Field(default=0, sa_type=sa.BigInteger)
    published: int = Field(default=0, sa_type=sa.BigInteger)
    dtypes: str | None = Field(default=None, sa_type=sa.Text)
    shapes: str | None = Field(default=None, sa_type=sa.Text)
    keyed: str | None = Field(default=None, max_length=DIGEST + 1)
    __table_args__ = (
        sa.Index(None, "namespace", "name", "tag", "lane", "published"),
        # What a name with many entries has for each environment is counted in this index alone.
        sa.Index("ix_entries_places", "namespace", "name", "tag", "lane", "partition", "head", "keyed"),
        sa.Index("ix_entries_models", "namespace", "name", "tag", "lane", "model", "published"),
        sa.Index(None, "head"),
        sa.Index(None, "published", "entry"),
        # Sums of one namespace look its entries up in the order of the other tables' indexes.
        sa.Index(None, "namespace", "entry"),
    )


class RevisionRow(SQLModel, table=True):
    """One published manifest, immutable. ``revision`` is the digest of the signed bytes.

    ``envelope`` is what was received, byte for byte. ``fingerprint`` and ``scopes`` repeat the manifest's,
    for ``compare``; ``measured`` and ``files`` for listings. ``last_used``: when it was last offered to a
    start, to a few hours; ``pinned``: since when an operator keeps it; ``quarantined``: since when an
    operator has it offered to no one; ``builder`` and ``source_ref``: of its provenance, checked at its
    commit.
    """

    __tablename__ = "revisions"
    revision: str = Field(primary_key=True, max_length=DIGEST)
    entry: str = Field(foreign_key="entries.entry", max_length=DIGEST)
    sequence: int = Field(sa_type=sa.BigInteger)
    envelope: bytes = Field(sa_type=sa.LargeBinary)
    signer: str = Field(max_length=128)
    pack: str = Field(max_length=DIGEST)
    pack_key: str = Field(foreign_key="objects.key", max_length=200, index=True)
    pack_size: int = Field(sa_type=sa.BigInteger)
    files: int
    fingerprint: dict[str, Any] = Field(sa_type=sa.JSON)
    scopes: list[str] = Field(sa_type=sa.JSON)
    measured: dict[str, float] = Field(sa_type=sa.JSON)
    expires: int | None = Field(default=None, sa_type=sa.BigInteger)
    published: int = Field(sa_type=sa.BigInteger)
    published_by: str = Field(max_length=40)
    last_used: int | None = Field(default=None, sa_type=sa.BigInteger)
    pinned: int | None = Field(default=None, sa_type=sa.BigInteger)
    quarantined: int | None = Field(default=None, sa_type=sa.BigInteger)
    quarantine_why: str | None = Field(default=None, max_length=300)
    builder: str | None = Field(default=None, max_length=1000)
    source_ref: str | None = Field(default=None, max_length=1000)
    __table_args__ = (
        sa.Index(None, "entry", "sequence"),
        # Sums and orders over all rows read these alone, and not the envelopes.
        sa.Index(None, "entry", "pack_size"),
        sa.Index(None, "last_used", "published", "revision"),
        sa.Index(None, "pack"),
        of_withheld_rows(),
    )


class GraphKeyRow(SQLModel, table=True):
    """A key of a compiled graph, as its compiler looks it up, and a revision that has it."""

    __tablename__ = "graph_keys"
    key: str = Field(primary_key=True, max_length=81)
    revision: str = Field(
        primary_key=True, max_length=DIGEST, foreign_key="revisions.revision", ondelete="CASCADE", index=True
    )


class WithdrawalRow(SQLModel, table=True):
    """What its namespace takes at no commit: a revision that an operator quarantined, with its bytes, and one
    that was deleted while its signer was revoked, without them (``pack`` is ``None``). The row outlives the
    revision. ``sequence``: the highest of the entry when the revision was deleted, else its own; older ones
    are refused there. ``files``: how many different files ``withdrawn_files`` has."""

    __tablename__ = "withdrawals"
    revision: str = Field(primary_key=True, max_length=DIGEST)
    namespace: str = Field(max_length=128)
    name: str = Field(max_length=1100)
    tag: str = Field(max_length=128)
    target: str = Field(max_length=256)
    entry: str = Field(max_length=DIGEST)
    sequence: int = Field(sa_type=sa.BigInteger)
    pack: str | None = Field(default=None, max_length=DIGEST)
    files: int
    since: int = Field(sa_type=sa.BigInteger)
    why: str = Field(max_length=300)
    __table_args__ = (sa.Index(None, "namespace", "pack"), sa.Index(None, "entry", "sequence"))


class AncestorRow(SQLModel, table=True):
    """A revision whose code can be in ``revision`` (``wire.manifest.ancestors``), near or far: as this
    registry had it at the commit, else as the signed manifest names it. It may exist nowhere."""

    __tablename__ = "ancestors"
    revision: str = Field(
        primary_key=True, max_length=DIGEST, foreign_key="revisions.revision", ondelete="CASCADE"
    )
    ancestor: str = Field(primary_key=True, max_length=DIGEST, index=True)
    namespace: str = Field(max_length=128)
    signer: str = Field(max_length=128, index=True)
    __table_args__ = (sa.Index(None, "revision", "signer"),)


class WithdrawnFileRow(SQLModel, table=True):
    """The digest of a file of a withdrawn revision."""

    __tablename__ = "withdrawn_files"
    digest: str = Field(primary_key=True, max_length=DIGEST)
    revision: str = Field(
        primary_key=True,
        max_length=DIGEST,
        foreign_key="withdrawals.revision",
        ondelete="CASCADE",
        index=True,
    )
