"""The attacks that the threat model names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/security/threat-model.md"


def named_tests() -> set[str]:
    """Return every test that the page names, as ``tests/…/test_x.py::test_y``."""
    return set(re.findall(r"`(tests/[\w/]+\.py::test_\w+)`", PAGE.read_text("utf-8")))


def attacks() -> set[str]:
    """Return those of this folder: one attack is one test, however many cases it has."""
    return {test for test in named_tests() if test.startswith("tests/security/")}
