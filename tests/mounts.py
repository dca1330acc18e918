"""Mount small file systems and folders, for tests of hosts whose folders can do less than a developer's, and
of containers, whose volumes are mounts."""

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
    with _mounted(place, "-t", "tmpfs", "-o", options, "tmpfs"):
        yield place


@contextlib.contextmanager
def bind(source: Path, place: Path) -> Iterator[Path]:
    """Mount a folder or a file at ``place``, as a container's volume; skip the test as `tmpfs`."""
    if source.is_file():
        place.touch()
    with _mounted(place, "--bind", str(source)):
        yield place


@contextlib.contextmanager
def _mounted(place: Path, *words: str) -> Iterator[None]:
    if not place.exists():
        place.mkdir(parents=True)
    command = ["mount", *words, str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
