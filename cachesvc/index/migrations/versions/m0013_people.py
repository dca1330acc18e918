"""The person of a token: a login to the web page at an identity provider makes one. Only adds to the schema:
an older replica goes on beside it, and takes such a token for one that an administrator made."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("person", sa.String(800)))
    op.create_index(None, "tokens", ["person"])


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
