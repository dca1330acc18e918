"""What operators watch and change without an outage: when an upload began, when a token was last used, and
the secret that a rotated token had before. Only adds to the schema: an older replica writes none of it, and
refuses a secret that was rotated away."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("uploads", sa.Column("started", sa.BigInteger))
    op.add_column("tokens", sa.Column("last_used", sa.BigInteger))
    op.add_column("tokens", sa.Column("previous_hash", sa.String(64)))
    op.add_column("tokens", sa.Column("previous_until", sa.BigInteger))
    op.create_index(None, "tokens", ["previous_hash"], unique=True)


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
