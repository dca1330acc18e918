"""The cold starts of each name and environment, which have no revision to be counted with. Only adds to the
schema: an older replica goes on beside it, and refuses the reports of these starts, as it did."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "cold_starts",
        sa.Column("namespace", sa.String(128), primary_key=True),
        sa.Column("name", sa.String(1100), primary_key=True),
        sa.Column("tag", sa.String(128), primary_key=True),
        sa.Column("lane", sa.String(128), primary_key=True),
        sa.Column("environment", sa.String(71), primary_key=True),
        sa.Column("fingerprint", sa.JSON, nullable=False),
        sa.Column("models", sa.JSON, nullable=False),
        sa.Column("starts", sa.BigInteger, nullable=False),
        sa.Column("spent", sa.Float, nullable=False),
        sa.Column("first_seen", sa.BigInteger, nullable=False),
        sa.Column("last_seen", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "cold_starts", ["namespace", "last_seen"])
    op.create_index(None, "cold_starts", ["last_seen"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
