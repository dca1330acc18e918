"""Test every row of the matrix from the builder to the consumer. `make matrix` prints the same as a table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .rows import ROWS, Row
from .world import World, world

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def matrix_world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("matrix")) as matrix_world:
        rows_of_session = [
            item.callspec.params.get("row") for item in request.session.items if hasattr(item, "callspec")
        ]
        matrix_world.begin(row for row in rows_of_session if isinstance(row, Row))
        yield matrix_world


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=[pytest.mark.long] * row.long) for row in ROWS]
)
def test_a_difference_has_the_expected_outcome(matrix_world: World, row: Row) -> None:
    outcome = matrix_world.outcome(row)
    assert not outcome.problem, (row.expectation, outcome.state, outcome.reason)


def test_the_matrix_has_enough_rows_and_enough_hits() -> None:
    """A cache that refuses everything would be a failure too."""
    hits = [row for row in ROWS if row.expect == "hit"]
    assert len(ROWS) >= 55 and len(hits) >= 15
    assert len({row.name for row in ROWS}) == len(ROWS)
