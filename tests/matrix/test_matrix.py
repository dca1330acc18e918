"""Every row of the matrix, through the whole path. `make matrix` prints the same as a table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .rows import ROWS, Row
from .world import World, world

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("matrix")) as made:
        wanted = [
            item.callspec.params.get("row") for item in request.session.items if hasattr(item, "callspec")
        ]
        made.begin(row for row in wanted if isinstance(row, Row))
        yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_difference_does_what_the_matrix_says(made: World, row: Row) -> None:
    outcome = made.outcome(row)
    assert not outcome.problem, (row.expectation, outcome.state, outcome.said)


def test_the_matrix_is_a_matrix() -> None:
    """Rejecting everything would be a failure too."""
    hits = [row for row in ROWS if row.expect == "hit"]
    assert len(ROWS) >= 55 and len(hits) >= 15
    assert len({row.name for row in ROWS}) == len(ROWS)
