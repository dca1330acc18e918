"""Starts by day, and the facts of the environments that reported a start. Only adds to the schema: an older
replica goes on beside it, and what it counts is in no plot."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "daily_starts",
        sa.Column("namespace", sa.String(128), primary_key=True),
        sa.Column("day", sa.BigInteger, primary_key=True),
        *(
            sa.Column(state, sa.BigInteger, nullable=False)
            for state in ("hit", "partial", "inert", "miss", "unused")
        ),
        sa.Column("saved", sa.Float, nullable=False),
        sa.Column("spent", sa.Float, nullable=False),
    )
    op.create_index(None, "daily_starts", ["day"])
    op.create_table(
        "environments",
        sa.Column("namespace", sa.String(128), primary_key=True),
        sa.Column("environment", sa.String(71), primary_key=True),
        sa.Column("fingerprint", sa.JSON, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "environments", ["namespace", "seen"])
    op.create_index(None, "environments", ["seen"])
    op.create_index(None, "usefulness", ["revision", "saved"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
