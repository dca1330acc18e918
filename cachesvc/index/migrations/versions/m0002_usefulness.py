"""What starts came to, by revision and environment. Adds tables only: an older replica goes on beside it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    counts = [
        sa.Column(state, sa.BigInteger, nullable=False)
        for state in ("hit", "partial", "inert", "miss", "unused")
    ]
    op.create_table(
        "usefulness",
        sa.Column(
            "revision",
            sa.String(71),
            sa.ForeignKey("revisions.revision", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("environment", sa.String(71), primary_key=True),
        sa.Column("facts", sa.JSON, nullable=False),
        *counts,
        sa.Column("saved", sa.Float, nullable=False),
        sa.Column("spent", sa.Float, nullable=False),
        sa.Column("first_seen", sa.BigInteger, nullable=False),
        sa.Column("last_seen", sa.BigInteger, nullable=False),
        sa.Column("quarantined", sa.BigInteger),
        sa.Column("why", sa.String(500), nullable=False),
    )
    op.create_index(None, "usefulness", ["last_seen"])
    op.create_table(
        "inert_hosts",
        sa.Column(
            "revision",
            sa.String(71),
            sa.ForeignKey("revisions.revision", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("environment", sa.String(71), primary_key=True),
        sa.Column("token", sa.String(40), primary_key=True),
        sa.Column("node", sa.String(32), primary_key=True),
        sa.Column("seen", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
