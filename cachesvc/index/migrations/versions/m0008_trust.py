"""The files of trust metadata. Only adds to the schema: an older replica goes on beside it, and serves
none."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "trust_files",
        sa.Column("role", sa.String(20), primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
