"""Open the index on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc.index.engine import open_postgresql, open_sqlite
from cachesvc.index.unit import Index


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Index]:
    if request.param == "sqlite":
        opened = open_sqlite(tmp_path / "index.sqlite3")
    else:
        opened = open_postgresql(request.getfixturevalue("database"))
    yield opened
    opened.close()
