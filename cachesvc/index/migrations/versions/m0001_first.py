"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _access()
    _bytes()
    _revisions()


def _access() -> None:
    op.create_table(
        "namespaces",
        sa.Column("namespace", sa.String(128), primary_key=True),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "signers",
        sa.Column("namespace", sa.String(128), primary_key=True),
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("label", sa.String(200), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
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
        sa.UniqueConstraint("secret_hash"),
    )


def _bytes() -> None:
    op.create_table(
        "objects",
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("digest", sa.String(71)),
        sa.Column("size", sa.BigInteger),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("leased_until", sa.BigInteger, nullable=False),
    )
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
    )
    op.create_index(None, "uploads", ["leased_until"])


def _revisions() -> None:
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
    )
    op.create_index(None, "entries", ["namespace", "name", "tag", "lane", "published"])
    op.create_index(None, "entries", ["head"])
    op.create_table(
        "revisions",
        sa.Column("revision", sa.String(71), primary_key=True),
        sa.Column("entry", sa.String(71), sa.ForeignKey("entries.entry"), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("envelope", sa.LargeBinary, nullable=False),
        sa.Column("signer", sa.String(128), nullable=False),
        sa.Column("pack", sa.String(71), nullable=False),
        sa.Column("pack_key", sa.String(200), sa.ForeignKey("objects.key"), nullable=False),
        sa.Column("pack_size", sa.BigInteger, nullable=False),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.JSON, nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("measured", sa.JSON, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("published", sa.BigInteger, nullable=False),
        sa.Column("published_by", sa.String(40), nullable=False),
    )
    op.create_index(None, "revisions", ["entry", "sequence"])
    op.create_index(None, "revisions", ["pack_key"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
