"""Define what all tables share: their metadata, the names of constraints, and the length of a digest."""

from __future__ import annotations

import sqlalchemy as sa
from sqlmodel import SQLModel

DIGEST = 71
"""Characters of a digest: ``sha256:`` and 64 hex digits."""
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names of constraints, the same on both databases, so that later migrations can drop them."""
metadata = SQLModel.metadata
metadata.naming_convention = NAMING


def of_withheld_rows() -> sa.Index:
    """Returns an index of the few rows that are withheld, so that a list of them reads no others."""
    withheld = sa.text("quarantined IS NOT NULL")
    return sa.Index(None, "quarantined", sqlite_where=withheld, postgresql_where=withheld)
