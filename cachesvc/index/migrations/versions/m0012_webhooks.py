"""An index by namespace, so that sums of a namespace read the order of the others' indexes. Only adds to the
schema: an older replica goes on beside it."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_index(None, "entries", ["namespace", "entry"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
