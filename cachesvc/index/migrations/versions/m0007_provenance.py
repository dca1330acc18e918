"""Provenance: the CI job of a token, the builder of a revision, and what a namespace requires of builders.
Only adds to the schema: an older replica goes on beside it. What it publishes meanwhile has no builder here,
and so meets no requirement.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("builder", sa.JSON, nullable=True))
    op.add_column("revisions", sa.Column("builder", sa.String(1000), nullable=True))
    op.add_column("revisions", sa.Column("source_ref", sa.String(1000), nullable=True))
    op.add_column("namespaces", sa.Column("require", sa.String(1000), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
