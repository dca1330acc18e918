"""Test that what `make test` leaves out is there, and that it runs another test of the same promise."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import on_demand

TESTS = Path(__file__).parents[1]
ROWS = on_demand()


def _test(node: str) -> ast.FunctionDef | None:
    """Return the test that a line names. A line of a whole file has none."""
    file, _, name = node.partition("::")
    file = file.partition("[")[0]
    tree = ast.parse((TESTS / file).read_text())
    if not name:
        return None
    name = name.partition("[")[0]
    return next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)


@pytest.mark.parametrize("left", ROWS)
def test_what_is_left_out_has_another_test_in_its_place(left: str) -> None:
    stays = ROWS[left]
    _test(left)
    kept = _test(stays)
    assert stays not in ROWS and stays.partition("::")[0] not in ROWS, "it is left out itself"
    assert kept is None or "pytest.mark.long" not in map(ast.unparse, kept.decorator_list)
