"""A private folder in use is never emptied, though no lock says that it is used: a program closed its
descriptors, or a program without cachesvc inherited the variables of one that has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import PROGRAMS, environment

AGE = 3600.0


def start(tmp_path: Path, who: str) -> Path:
    """Run a user of a private folder until it has printed the folder, or ended; return the folder."""
    env = environment(tmp_path, CACHESVC_URL="http://127.0.0.1:9", CACHESVC_LOG="debug")
    command = [sys.executable, str(PROGRAMS / "folder_user.py"), who, str(tmp_path / "until")]
    with open(tmp_path / f"log-{who}", "w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env, text=True)
        assert process.stdout is not None
        folder = process.stdout.readline().strip()
        assert folder, (tmp_path / f"log-{who}").read_text()
        if who != "closes":
            process.wait(60)
    return Path(folder)


def age(folder: Path) -> None:
    """Set the times of a folder's parts to an hour ago, as if nothing had been compiled there since."""
    for path, _, _ in os.walk(folder.parent):
        os.utime(path, (time.time() - AGE,) * 2)


@pytest.fixture
def until(tmp_path: Path) -> Iterator[Path]:
    """The file that ends the processes of a test."""
    path = tmp_path / "until"
    yield path
    path.touch()


@pytest.mark.parametrize("who", ["closes", "daemon", "launcher"])
def test_a_folder_in_use_stays_though_its_lock_is_gone(tmp_path: Path, until: Path, who: str) -> None:
    folder = start(tmp_path, who)
    age(folder)
    start(tmp_path, "ends")
    assert (folder / f"{who}.cpp").exists(), "it was emptied under its user"
    until.touch()
    limit = time.monotonic() + 60
    while folder.parent.exists():
        assert time.monotonic() < limit, "nobody uses it, and it stays"
        age(folder)
        start(tmp_path, "ends")
