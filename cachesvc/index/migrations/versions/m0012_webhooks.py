"""Webhooks with the events that wait for their receivers, when a token's expiry was announced, and an index
by which sums of one namespace look its entries up in order. Only adds to the schema: an older replica goes on
beside it, and announces nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
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
    op.add_column("tokens", sa.Column("announced", sa.BigInteger))
    op.create_index(None, "entries", ["namespace", "entry"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
