"""Find the virtual environments of other versions of torch, which `make torch-env VERSION=…` makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".torch"
VARIABLE = "CACHESVC_TEST_VERSIONS"
"""Names the versions that are to be tested: separated by spaces, or ``required`` for all of them. A version
that it names must be there. If it is not set, a version that is not there is skipped."""


def python_of(version: str) -> Path:
    """Return the interpreter that has torch ``version``, this checkout and the test tools.

    Skip the test if there is no such interpreter, or if other versions are to be tested; fail the test if
    there must be one."""
    versions = os.environ.get(VARIABLE, "").split()
    if versions and "required" not in versions and version not in versions:
        pytest.skip(f"{VARIABLE} does not name torch {version}")
    if not (FOLDER / version / ".ready").exists():
        message = f"no environment with torch {version}: make torch-env VERSION={version}"
        pytest.fail(message) if versions else pytest.skip(message)
    return FOLDER / version / "bin" / "python"
