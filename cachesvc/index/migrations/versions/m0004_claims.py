"""Claims: who compiles a missing key now. Adds a table only: an older replica goes on beside it.

That one marks no claim as done when it commits: those who wait learn of it when the claim ends.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
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
    op.create_index(None, "claims", ["token", "expires"])
    op.create_index(None, "claims", ["expires"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
