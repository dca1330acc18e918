"""Test that a file is whole or absent, also if its writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cachesvc_client.atomic import replacing

KILLED = """
import os, signal, sys
from pathlib import Path
from cachesvc_client.atomic import replacing
with replacing(Path(sys.argv[1])) as out:
    out.write(b"half")
    out.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_takes_its_place_with_exactly_these_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    before = os.umask(0o077)
    try:
        with replacing(path, 0o644) as out:
            out.write(b"new")
            assert path.read_bytes() == b"old"
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_stays_as_it_was_if_the_block_raises(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as out:
        out.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_stays_as_it_was_if_its_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    result = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60)
    assert result.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
