"""An index of the starts that compiled although an entry fitted: the page of misses reads no others."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
COMPILED = sa.text("inert + partial > 0")


def upgrade() -> None:
    op.create_index(
        "ix_usefulness_compiled",
        "usefulness",
        ["last_seen"],
        sqlite_where=COMPILED,
        postgresql_where=COMPILED,
    )
