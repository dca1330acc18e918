"""The schema of 0.1.0. A new database has the newest tables at once, so the first step does nothing.

The steps after it end with the tables that a new database has: `tests/index` compares them.
"""

revision = "0019"
down_revision = None


def upgrade() -> None:
    pass
