"""Mount small file systems, for tests of hosts whose folders can do less than a developer's."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def tmpfs(place: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs at ``place`` for the length of the block; skip the test where that is not allowed."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
