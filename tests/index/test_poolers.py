"""Test the index behind a real PgBouncer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from cachesvc.domain.access import Role, Token
from cachesvc.index.engine import open_postgresql
from cachesvc.index.unit import Index
from tests.services.pgbouncer import pgbouncer

IGNORED = {"ignore_startup_parameters": "options"}
SESSION = {"pool_mode": "session", "default_pool_size": "20"}


@pytest.mark.parametrize(
    "settings",
    [{}, IGNORED, SESSION, SESSION | IGNORED],
    ids=["transaction, refused", "transaction, ignored", "session, refused", "session, ignored"],
)
def test_each_reader_gets_its_own_token(postgresql: str, database: str, settings: dict[str, str]) -> None:
    """In transaction mode twelve readers share two connections to the server. A statement prepared on another
    one would fail, or be another reader's."""
    with pgbouncer(postgresql, **settings) as url:
        index = open_postgresql(f"{url}/{database.rpartition('/')[2]}")
        with index.write() as unit:
            for number in range(12):
                unit.tokens.add(Token(f"t-{number}", "ci", Role.read, "team"), f"hash-{number}")
        with ThreadPoolExecutor(12) as readers:
            assert list(readers.map(lambda number: read_and_write(index, number), range(12))) == [True] * 12
        assert limits(index) == ["30s", "10s", "1min"]
        index.close()


def read_and_write(index: Index, number: int) -> bool:
    """Return whether a token was always the one that was asked for."""
    right = True
    for turn in range(30):
        with index.read() as unit:
            found = unit.tokens.by_hash(f"hash-{number}", 20)
            right &= found is not None and found.token == f"t-{number}"
        with index.write() as unit:
            unit.tokens.use(f"t-{number}", turn)
    return right


def limits(index: Index) -> list[str]:
    """Return the limits within a transaction."""
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    with index.write() as unit:
        return [unit.connection.execute(sa.text(f"SHOW {name}")).scalar_one() for name in names]


def test_limits_hold_without_a_pooler(database: str) -> None:
    index = open_postgresql(database)
    assert limits(index) == ["30s", "10s", "1min"]
    index.close()
