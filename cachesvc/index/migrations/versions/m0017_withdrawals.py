"""What operators withdrew, bytes and sequences, which outlives the revision. Only adds to the schema: an
older replica goes on beside it, and takes withdrawn bytes at a commit."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
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
    op.create_index(None, "withdrawals", ["namespace", "pack"])
    op.create_index(None, "withdrawals", ["entry", "sequence"])
    op.create_table(
        "withdrawn_files",
        sa.Column("digest", sa.String(71), primary_key=True),
        sa.Column(
            "revision",
            sa.String(71),
            sa.ForeignKey("withdrawals.revision", ondelete="CASCADE"),
            primary_key=True,
        ),
    )
    op.create_index(None, "withdrawn_files", ["revision"])
    op.create_index(None, "revisions", ["pack"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
