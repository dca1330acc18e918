"""Sessions of the web page, and indexes of the few rows that are withheld: a list of them read all others.
Only adds to the schema: an older replica goes on beside it without the page."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("session_hash", sa.String(64), primary_key=True),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
    )
    op.create_index(None, "sessions", ["token"])
    op.create_index(None, "sessions", ["expires"])
    for table in ("revisions", "usefulness"):
        withheld = sa.text("quarantined IS NOT NULL")
        op.create_index(None, table, ["quarantined"], sqlite_where=withheld, postgresql_where=withheld)


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
