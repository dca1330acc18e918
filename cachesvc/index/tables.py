"""Define the tables. The docstrings say when a column is valid and what it may be trusted for.

Times are seconds of UTC as integers. The trunk is the lane ``''``: a value and not NULL, so that equality
and unique indexes mean what they say on both databases.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

DIGEST = 71
"""Characters of a digest: ``sha256:`` and 64 hex digits."""

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names of constraints, the same on both databases, so that later migrations can drop them."""


def _of_withheld_rows() -> sa.Index:
    """Returns an index of the few rows that are withheld, so that a list of them reads no others."""
    withheld = sa.text("quarantined IS NOT NULL")
    return sa.Index(None, "quarantined", sqlite_where=withheld, postgresql_where=withheld)


metadata = SQLModel.metadata
metadata.naming_convention = NAMING


class NamespaceRow(SQLModel, table=True):
    """A namespace exists from its first commit on, or from its first policy. What it keeps: ``None`` is
    as the settings say, or without a bound. ``require``: who must have built what its trunk offers
    (``wire.requirement``)."""

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
    ``builder``: that job, as its verified token described it (``wire.provenance.BuilderIdentity``).
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
    """A rule by which a CI job gets a token of minutes (``wire.publishers.PublisherRequest``). ``lane``:
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
    lease, so that a commit whose answer was lost can be sent again. ``started``: when the upload began;
    ``None`` if an older replica began it.
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
    """Who compiles now what ``key`` stands for (``wire.claims.ClaimSubject``). Times: the database's clock.

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

    ``dtypes`` and ``shapes``: of the inputs, each between spaces, for searching; ``None`` until a
    replica that knows these columns has written them. ``keyed``: the revision whose keys of graphs
    ``graph_keys`` has, with ``!`` before it if no start may leave it out (``Manifest.may_wait``); another one
    than ``head`` until a replica that knows this column has written them.
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
        _of_withheld_rows(),
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
    """A revision whose code can be in ``revision`` (``wire.ancestors``), near or far: as this registry had it
    at the commit, else as the signed manifest names it. It may exist nowhere."""

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


class OutcomeSums(SQLModel):
    """The columns of a table that adds up outcomes: starts by state, and seconds saved and spent."""

    hit: int = Field(default=0, sa_type=sa.BigInteger)
    partial: int = Field(default=0, sa_type=sa.BigInteger)
    inert: int = Field(default=0, sa_type=sa.BigInteger)
    miss: int = Field(default=0, sa_type=sa.BigInteger)
    unused: int = Field(default=0, sa_type=sa.BigInteger)
    saved: float = 0.0
    spent: float = 0.0


class GraphKeyRow(SQLModel, table=True):
    """A key of a compiled graph, as its compiler looks it up, and a revision that has it."""

    __tablename__ = "graph_keys"
    key: str = Field(primary_key=True, max_length=81)
    revision: str = Field(
        primary_key=True, max_length=DIGEST, foreign_key="revisions.revision", ondelete="CASCADE", index=True
    )


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
    __table_args__ = (_of_withheld_rows(), sa.Index(None, "revision", "saved"))


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
    nodes have what a leaked key signed. ``node``: digits that the client chose (``wire.reports``), no name
    of a machine; trusted for nothing. ``state``: of its last report. ``seen``: to an hour."""

    __tablename__ = "revision_nodes"
    revision: str = Field(
        primary_key=True, max_length=DIGEST, foreign_key="revisions.revision", ondelete="CASCADE"
    )
    node: str = Field(primary_key=True, max_length=32)
    token: str = Field(max_length=40)
    state: str = Field(max_length=10)
    seen: int = Field(sa_type=sa.BigInteger, index=True)


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
