"""Revoked signers, the nodes that reported a revision, and whose the pending bytes are. Only adds to the
schema: an older replica goes on beside it. That one refuses no revoked key at a commit, writes down no node,
and counts no pending bytes; what a revoked key signed is offered by no replica of this version.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "revoked_signers",
        sa.Column("namespace", sa.String(128), primary_key=True),
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("revoked", sa.BigInteger, nullable=False),
        sa.Column("why", sa.String(300), nullable=False),
        sa.Column("by", sa.String(40), nullable=False),
    )
    op.create_table(
        "revision_nodes",
        sa.Column(
            "revision",
            sa.String(71),
            sa.ForeignKey("revisions.revision", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("node", sa.String(32), primary_key=True),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "revision_nodes", ["seen"])
    op.add_column("objects", sa.Column("share", sa.String(300), nullable=True))
    op.add_column("objects", sa.Column("announced", sa.BigInteger, nullable=True))
    op.create_index(None, "objects", ["share"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
