"""The ancestors of revisions, through which a withdrawal reaches what was made with the withdrawn. Only adds
to the schema: an older replica goes on beside it, and records none."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "ancestors",
        sa.Column(
            "revision",
            sa.String(71),
            sa.ForeignKey("revisions.revision", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("ancestor", sa.String(71), primary_key=True),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("signer", sa.String(128), nullable=False),
    )
    op.create_index(None, "ancestors", ["ancestor"])
    op.create_index(None, "ancestors", ["signer"])
    op.create_index(None, "ancestors", ["revision", "signer"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
