"""The first schema. Steps up to this one were never released: their databases have the same tables."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = None


def upgrade() -> None:
    _access()
    _bytes()
    _entries()
    _starts()
    _outside()


def _access() -> None:
    op.create_table(
        "namespaces",
        sa.Column("namespace", sa.String(128), primary_key=True),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("keep_revisions", sa.Integer),
        sa.Column("keep_days", sa.Integer),
        sa.Column("unused_days", sa.Integer),
        sa.Column("keep_bytes", sa.BigInteger),
        sa.Column("quota_bytes", sa.BigInteger),
        sa.Column("require", sa.String(1000)),
    )
    op.create_table(
        "signers",
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("label", sa.String(200), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "key"),
    )
    op.create_table(
        "revoked_signers",
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("revoked", sa.BigInteger, nullable=False),
        sa.Column("why", sa.String(300), nullable=False),
        sa.Column("by", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "key"),
    )
    op.create_table(
        "tokens",
        sa.Column("token", sa.String(40), primary_key=True),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("label", sa.String(200), nullable=False),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("lane", sa.String(128), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("revoked", sa.BigInteger),
        sa.Column("publisher", sa.String(40)),
        sa.Column("builder", sa.JSON(none_as_null=True)),
        sa.Column("last_used", sa.BigInteger),
        sa.Column("previous_hash", sa.String(64)),
        sa.Column("previous_until", sa.BigInteger),
        sa.Column("announced", sa.BigInteger),
        sa.Column("person", sa.String(800)),
        sa.UniqueConstraint("secret_hash"),
    )
    op.create_index(None, "tokens", ["person"])
    op.create_index(None, "tokens", ["previous_hash"], unique=True)
    op.create_index(None, "tokens", ["publisher"])
    op.create_table(
        "publishers",
        sa.Column("publisher", sa.String(40), primary_key=True),
        sa.Column("issuer", sa.String(500), nullable=False),
        sa.Column("audience", sa.String(500), nullable=False),
        sa.Column("claims", sa.JSON, nullable=False),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("lane", sa.String(128)),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("minutes", sa.Integer, nullable=False),
        sa.Column("label", sa.String(500), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "publishers", ["issuer"])
    op.create_table(
        "job_tokens",
        sa.Column("use", sa.String(71), primary_key=True),
        sa.Column("expires", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "job_tokens", ["expires"])
    op.create_table(
        "sessions",
        sa.Column("session_hash", sa.String(64), primary_key=True),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "sessions", ["expires"])
    op.create_index(None, "sessions", ["token"])
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("by", sa.String(40), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
    )
    op.create_index(None, "audit", ["at"])


def _bytes() -> None:
    op.create_table(
        "objects",
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("digest", sa.String(71)),
        sa.Column("size", sa.BigInteger),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("leased_until", sa.BigInteger, nullable=False),
        sa.Column("share", sa.String(300)),
        sa.Column("announced", sa.BigInteger),
    )
    op.create_index(None, "objects", ["share"])
    op.create_index(None, "objects", ["state", "leased_until"])
    op.create_table(
        "uploads",
        sa.Column("upload", sa.String(40), primary_key=True),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("name", sa.String(1100), nullable=False),
        sa.Column("lane", sa.String(128), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("leased_until", sa.BigInteger, nullable=False),
        sa.Column("key", sa.String(200)),
        sa.Column("started", sa.BigInteger),
    )
    op.create_index(None, "uploads", ["leased_until"])
    op.create_table(
        "claims",
        sa.Column("key", sa.String(71), primary_key=True),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("name", sa.String(1100), nullable=False),
        sa.Column("lane", sa.String(128), nullable=False),
        sa.Column("holder", sa.String(32), nullable=False),
        sa.Column("who", sa.String(100), nullable=False),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("taken", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("done", sa.Boolean, nullable=False),
    )
    op.create_index(None, "claims", ["expires"])
    op.create_index(None, "claims", ["token", "expires"])


def _entries() -> None:
    op.create_table(
        "entries",
        sa.Column("entry", sa.String(71), primary_key=True),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("lane", sa.String(128), nullable=False),
        sa.Column("name", sa.String(1100), nullable=False),
        sa.Column("tag", sa.String(128), nullable=False),
        sa.Column("target", sa.String(256), nullable=False),
        sa.Column("partition", sa.String(71), nullable=False),
        sa.Column("workload", sa.String(71), nullable=False),
        sa.Column("model", sa.String(71)),
        sa.Column("head", sa.String(71)),
        sa.Column("head_sequence", sa.BigInteger, nullable=False),
        sa.Column("published", sa.BigInteger, nullable=False),
        sa.Column("dtypes", sa.Text),
        sa.Column("shapes", sa.Text),
        sa.Column("keyed", sa.String(72)),
    )
    op.create_index(None, "entries", ["head"])
    op.create_index(
        "ix_entries_models", "entries", ["namespace", "name", "tag", "lane", "model", "published"]
    )
    op.create_index(None, "entries", ["namespace", "entry"])
    op.create_index(None, "entries", ["namespace", "name", "tag", "lane", "published"])
    op.create_index(
        "ix_entries_places", "entries", ["namespace", "name", "tag", "lane", "partition", "head", "keyed"]
    )
    op.create_index(None, "entries", ["published", "entry"])
    op.create_table(
        "revisions",
        sa.Column("revision", sa.String(71), primary_key=True),
        sa.Column("entry", sa.String(71), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("envelope", sa.LargeBinary, nullable=False),
        sa.Column("signer", sa.String(128), nullable=False),
        sa.Column("pack", sa.String(71), nullable=False),
        sa.Column("pack_key", sa.String(200), nullable=False),
        sa.Column("pack_size", sa.BigInteger, nullable=False),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.JSON, nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("measured", sa.JSON, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("published", sa.BigInteger, nullable=False),
        sa.Column("published_by", sa.String(40), nullable=False),
        sa.Column("last_used", sa.BigInteger),
        sa.Column("pinned", sa.BigInteger),
        sa.Column("quarantined", sa.BigInteger),
        sa.Column("quarantine_why", sa.String(300)),
        sa.Column("builder", sa.String(1000)),
        sa.Column("source_ref", sa.String(1000)),
        sa.ForeignKeyConstraint(["entry"], ["entries.entry"]),
        sa.ForeignKeyConstraint(["pack_key"], ["objects.key"]),
    )
    op.create_index(None, "revisions", ["entry", "pack_size"])
    op.create_index(None, "revisions", ["entry", "sequence"])
    op.create_index(None, "revisions", ["last_used", "published", "revision"])
    op.create_index(None, "revisions", ["pack"])
    op.create_index(None, "revisions", ["pack_key"])
    _index_withheld("revisions")
    op.create_table(
        "graph_keys",
        sa.Column("key", sa.String(81), nullable=False),
        sa.Column("revision", sa.String(71), nullable=False),
        sa.ForeignKeyConstraint(["revision"], ["revisions.revision"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", "revision"),
    )
    op.create_index(None, "graph_keys", ["revision"])
    op.create_table(
        "ancestors",
        sa.Column("revision", sa.String(71), nullable=False),
        sa.Column("ancestor", sa.String(71), nullable=False),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("signer", sa.String(128), nullable=False),
        sa.ForeignKeyConstraint(["revision"], ["revisions.revision"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("revision", "ancestor"),
    )
    op.create_index(None, "ancestors", ["ancestor"])
    op.create_index(None, "ancestors", ["revision", "signer"])
    op.create_index(None, "ancestors", ["signer"])
    op.create_table(
        "withdrawals",
        sa.Column("revision", sa.String(71), primary_key=True),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("name", sa.String(1100), nullable=False),
        sa.Column("tag", sa.String(128), nullable=False),
        sa.Column("target", sa.String(256), nullable=False),
        sa.Column("entry", sa.String(71), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("pack", sa.String(71)),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("why", sa.String(300), nullable=False),
    )
    op.create_index(None, "withdrawals", ["entry", "sequence"])
    op.create_index(None, "withdrawals", ["namespace", "pack"])
    op.create_table(
        "withdrawn_files",
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("revision", sa.String(71), nullable=False),
        sa.ForeignKeyConstraint(["revision"], ["withdrawals.revision"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", "revision"),
    )
    op.create_index(None, "withdrawn_files", ["revision"])


def _starts() -> None:
    op.create_table(
        "environments",
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("environment", sa.String(71), nullable=False),
        sa.Column("fingerprint", sa.JSON, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "environment"),
    )
    op.create_index(None, "environments", ["namespace", "seen"])
    op.create_index(None, "environments", ["seen"])
    op.create_table(
        "cold_starts",
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("name", sa.String(1100), nullable=False),
        sa.Column("tag", sa.String(128), nullable=False),
        sa.Column("lane", sa.String(128), nullable=False),
        sa.Column("environment", sa.String(71), nullable=False),
        sa.Column("fingerprint", sa.JSON, nullable=False),
        sa.Column("models", sa.JSON, nullable=False),
        sa.Column("starts", sa.BigInteger, nullable=False),
        sa.Column("spent", sa.Float, nullable=False),
        sa.Column("first_seen", sa.BigInteger, nullable=False),
        sa.Column("last_seen", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", "tag", "lane", "environment"),
    )
    op.create_index(None, "cold_starts", ["last_seen"])
    op.create_index(None, "cold_starts", ["namespace", "last_seen"])
    op.create_table(
        "daily_starts",
        sa.Column("hit", sa.BigInteger, nullable=False),
        sa.Column("partial", sa.BigInteger, nullable=False),
        sa.Column("inert", sa.BigInteger, nullable=False),
        sa.Column("miss", sa.BigInteger, nullable=False),
        sa.Column("unused", sa.BigInteger, nullable=False),
        sa.Column("saved", sa.Float, nullable=False),
        sa.Column("spent", sa.Float, nullable=False),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("day", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "day"),
    )
    op.create_index(None, "daily_starts", ["day"])
    op.create_table(
        "usefulness",
        sa.Column("hit", sa.BigInteger, nullable=False),
        sa.Column("partial", sa.BigInteger, nullable=False),
        sa.Column("inert", sa.BigInteger, nullable=False),
        sa.Column("miss", sa.BigInteger, nullable=False),
        sa.Column("unused", sa.BigInteger, nullable=False),
        sa.Column("saved", sa.Float, nullable=False),
        sa.Column("spent", sa.Float, nullable=False),
        sa.Column("revision", sa.String(71), nullable=False),
        sa.Column("environment", sa.String(71), nullable=False),
        sa.Column("facts", sa.JSON, nullable=False),
        sa.Column("first_seen", sa.BigInteger, nullable=False),
        sa.Column("last_seen", sa.BigInteger, nullable=False),
        sa.Column("quarantined", sa.BigInteger),
        sa.Column("why", sa.String(500), nullable=False),
        sa.ForeignKeyConstraint(["revision"], ["revisions.revision"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("revision", "environment"),
    )
    op.create_index(None, "usefulness", ["last_seen"])
    _index_withheld("usefulness")
    op.create_index(None, "usefulness", ["revision", "saved"])
    op.create_table(
        "revision_nodes",
        sa.Column("revision", sa.String(71), nullable=False),
        sa.Column("node", sa.String(32), nullable=False),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["revision"], ["revisions.revision"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("revision", "node"),
    )
    op.create_index(None, "revision_nodes", ["seen"])
    op.create_table(
        "inert_hosts",
        sa.Column("revision", sa.String(71), nullable=False),
        sa.Column("environment", sa.String(71), nullable=False),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("node", sa.String(32), nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["revision"], ["revisions.revision"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("revision", "environment", "token", "node"),
    )


def _outside() -> None:
    op.create_table(
        "trust_files",
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("role", "version"),
    )
    op.create_table(
        "mirrors",
        sa.Column("upstream", sa.String(500), primary_key=True),
        sa.Column("looked", sa.BigInteger),
    )
    op.create_table(
        "upstream_tokens",
        sa.Column("secret_hash", sa.String(64), primary_key=True),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("checked", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "upstream_tokens", ["checked"])
    op.create_table(
        "webhooks",
        sa.Column("webhook", sa.String(40), primary_key=True),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("url", sa.String(1000), nullable=False),
        sa.Column("events", sa.String(500), nullable=False),
        sa.Column("label", sa.String(200), nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("retry", sa.BigInteger),
        sa.Column("busy", sa.BigInteger),
        sa.Column("last_delivered", sa.BigInteger),
        sa.Column("last_error", sa.String(300), nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("webhook", sa.String(40), nullable=False),
        sa.Column("event", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("due", sa.BigInteger, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("dead", sa.BigInteger),
    )
    op.create_index(None, "deliveries", ["webhook", "dead", "due"])


def _index_withheld(table: str) -> None:
    withheld = sa.text("quarantined IS NOT NULL")
    op.create_index(None, table, ["quarantined"], sqlite_where=withheld, postgresql_where=withheld)


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
