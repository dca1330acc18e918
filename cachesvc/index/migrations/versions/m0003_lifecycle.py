"""Retention by namespace, pins, last use, quarantine by operators, what entries are found by, the audit log.

Adds tables and columns that may be empty: an older replica goes on beside it.
"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for name, kind in (
        ("keep_revisions", sa.Integer),
        ("keep_days", sa.Integer),
        ("unused_days", sa.Integer),
        ("keep_bytes", sa.BigInteger),
        ("quota_bytes", sa.BigInteger),
    ):
        op.add_column("namespaces", sa.Column(name, kind))
    for name in ("dtypes", "shapes"):
        op.add_column("entries", sa.Column(name, sa.Text))
    for name in ("pinned", "quarantined"):
        op.add_column("revisions", sa.Column(name, sa.BigInteger))
    op.add_column("revisions", sa.Column("quarantine_why", sa.String(300)))
    _last_used()
    # What is summed and sorted over all rows: reading it must not read the envelopes beside it.
    op.create_index(None, "entries", ["published", "entry"])
    op.create_index(None, "revisions", ["entry", "pack_size"])
    op.create_index(None, "revisions", ["last_used", "published", "revision"])
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("by", sa.String(40), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
    )
    op.create_index(None, "audit", ["at"])


def _last_used() -> None:
    """When they were last used no one knows: it counts from now on, or retention would take them at once."""
    now = int(time.time())
    if op.get_bind().dialect.name == "postgresql":
        # A constant default costs no rewrite of the table, which is locked until the commit
        # (https://www.postgresql.org/docs/current/ddl-alter.html, "Adding a Column").
        op.add_column("revisions", sa.Column("last_used", sa.BigInteger, server_default=str(now)))
        op.alter_column("revisions", "last_used", server_default=None)
    else:
        op.add_column("revisions", sa.Column("last_used", sa.BigInteger))
        op.execute(sa.text("UPDATE revisions SET last_used = :now").bindparams(now=now))


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
