"""Which registry this one mirrors, and the tokens that it has confirmed. Only adds to the schema: an older
replica goes on beside it, and knows no mirror."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
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


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
