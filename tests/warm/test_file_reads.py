"""Test the watch over a cache folder: the reads that it reports, by inotify and by access times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cachesvc.warm.worker.file_reads import ReadWatch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "inner/b", "inner/c"):
        path = tmp_path / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "cache"


def test_reads_of_this_process_and_of_a_child_are_reported(folder: Path) -> None:
    with ReadWatch(folder) as watch:
        (folder / "a").read_bytes()
        (folder / "inner" / "c").stat()
        code = "import sys; open(sys.argv[1]).read()"
        subprocess.run([sys.executable, "-c", code, folder / "inner" / "b"], check=True)
    assert watch.read() == {"a", "inner/b"}


def test_a_file_in_a_new_folder_is_reported(folder: Path) -> None:
    with ReadWatch(folder) as watch:
        (folder / "new").mkdir()
        end = time.monotonic() + 10
        while watch.method == "inotify" and str(folder / "new") not in watch._folders.values():
            assert time.monotonic() < end
            time.sleep(0.01)
        (folder / "new" / "d").write_text("d")
        (folder / "new" / "d").read_bytes()
    assert watch.read() == {"new/d"}


def test_access_times_are_compared_without_inotify(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: ReadWatch) -> None:
        raise OSError("no watches left")

    os.utime(folder / "a", (0.0, 1e9))
    (folder / "a").read_bytes()
    if (folder / "a").stat().st_atime == 0.0:
        pytest.skip("this file system records no access times")
    monkeypatch.setattr(ReadWatch, "_begin", fail)
    with ReadWatch(folder) as watch:
        (folder / "inner" / "b").read_bytes()
    assert (watch.method, watch.read()) == ("atime", {"inner/b"})
