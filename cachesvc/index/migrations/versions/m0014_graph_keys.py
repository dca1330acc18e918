"""The keys of the graphs that revisions hold, and indexes of names with many entries. Only adds to the
schema: an older replica goes on beside it, and the next collection adds the keys of what it publishes."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "graph_keys",
        sa.Column("key", sa.String(81), primary_key=True),
        sa.Column(
            "revision",
            sa.String(71),
            sa.ForeignKey("revisions.revision", ondelete="CASCADE"),
            primary_key=True,
        ),
    )
    op.create_index(None, "graph_keys", ["revision"])
    op.add_column("entries", sa.Column("keyed", sa.String(72), nullable=True))
    place = ["namespace", "name", "tag", "lane"]
    op.create_index("ix_entries_places", "entries", [*place, "partition", "head", "keyed"])
    op.create_index("ix_entries_models", "entries", [*place, "model", "published"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
