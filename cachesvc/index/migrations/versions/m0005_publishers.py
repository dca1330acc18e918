"""Trusted publishers: rules, the tokens that they gave, and the job tokens that were used. Only adds to the
schema: an older replica goes on beside it, and makes tokens of no rule.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "publishers",
        sa.Column("publisher", sa.String(40), primary_key=True),
        sa.Column("issuer", sa.String(500), nullable=False),
        sa.Column("audience", sa.String(500), nullable=False),
        sa.Column("claims", sa.JSON, nullable=False),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("lane", sa.String(128), nullable=True),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("minutes", sa.Integer, nullable=False),
        sa.Column("label", sa.String(500), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "publishers", ["issuer"])
    op.create_table(
        "job_tokens",
        sa.Column("use", sa.String(71), primary_key=True),
        sa.Column("expires", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "job_tokens", ["expires"])
    op.add_column("tokens", sa.Column("publisher", sa.String(40), nullable=True))
    op.create_index(None, "tokens", ["publisher"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
