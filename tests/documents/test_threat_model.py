"""The threat model names tests that exist, and enough attacks."""

from __future__ import annotations

import ast

from tests.security.attacks import PAGE, ROOT, attacks, named_tests

WIDTH = 130
"""Characters of a line of the page, at most."""
ATTACKS = 60
"""Attacks of `tests/security` that the page names, at least."""


def defined_tests(path: str) -> set[str]:
    """Return the names of the test functions of a file."""
    module = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_page_names_exists() -> None:
    files = {test.partition("::")[0] for test in named_tests()}
    assert [path for path in sorted(files) if not (ROOT / path).is_file()] == []
    existing = {f"{path}::{name}" for path in files for name in defined_tests(path)}
    assert sorted(named_tests() - existing) == []


def test_the_page_names_every_attack_that_the_project_promises() -> None:
    assert len(attacks()) >= ATTACKS


def test_the_page_has_short_lines() -> None:
    assert [line for line in PAGE.read_text("utf-8").splitlines() if len(line) > WIDTH] == []
