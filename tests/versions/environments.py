"""Finds the virtual environments of other versions of torch, which `make torch-env VERSION=…` makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".torch"
VARIABLE = "CACHESVC_TEST_VERSIONS"
"""Names the versions that are to be tested: separated by spaces, or ``required`` for all of them. A version
that it names must be there. If it is not set, a version that is not there is skipped."""


def python_of(version: str) -> Path:
    """Answers the interpreter that has torch ``version``, this checkout and the test tools.

    Skips the test if there is none, or if other versions are to be tested; fails it if there must be one.
    """
    wanted = os.environ.get(VARIABLE, "").split()
    if wanted and "required" not in wanted and version not in wanted:
        pytest.skip(f"{VARIABLE} does not name torch {version}")
    if not (FOLDER / version / ".ready").exists():
        message = f"no environment with torch {version}: make torch-env VERSION={version}"
        pytest.fail(message) if wanted else pytest.skip(message)
    return FOLDER / version / "bin" / "python"
