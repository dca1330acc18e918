"""Test the probe of a folder on real file systems, and that the first folder that passes is chosen."""

import contextlib
import fcntl
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from packing import run_in_child

from cachesvc_client.node import folder_probe
from cachesvc_client.node.folder_probe import STEPS, FolderProbe, probe_folder
from cachesvc_client.node.store import NodeStore, default_root
from cachesvc_client.node.store_root import NoFolder, candidates, choose_store, store_root
from tests.mounts import tmpfs

SAFE = "a.b_c+d@e-f"
"""Each sign that the probe lets through, beside letters and digits."""


def usual(monkeypatch: pytest.MonkeyPatch, home: Path, temporary: Path) -> None:
    temporary.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for name in ("CACHESVC_STORE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))


def test_a_folder_that_can_be_used_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / SAFE / "deeper"
    assert probe_folder(folder) == FolderProbe(folder)
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o700
    assert probe_folder(folder).steps() == [(step, "ok") for step in STEPS]


def test_no_umask_makes_folders_that_the_next_start_refuses(tmp_path: Path) -> None:
    """As 002, usual where each user has a group: what is made on the way is nobody else's to write."""
    before = os.umask(0)
    try:
        assert probe_folder(tmp_path / "made/on/the/way").usable
    finally:
        os.umask(before)
    NodeStore(tmp_path / "made/on/the/way")
    assert [path.stat().st_mode & 0o777 for path in sorted(tmp_path.rglob("*"))[:4]] == [0o755] * 3 + [0o700]


def test_a_home_of_a_group_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of clusters. Who is in a group cannot be known: the next folder is used, and one line says why."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    home.chmod(0o2775)
    usual(monkeypatch, home, temporary)
    choice = choose_store()
    assert choice.root == temporary / f"cachesvc-{os.geteuid()}"
    [refused] = choice.refused
    assert refused.failed == "owner" and f"chmod go-w {home}" in refused.why
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("sign", " '\"$`\\;&|<>()*?[]{}!#~%^,:=\n\tä")
def test_a_path_with_another_sign_is_refused_and_nothing_is_made(tmp_path: Path, sign: str) -> None:
    found = probe_folder(tmp_path / f"a{sign}b" / "store")
    assert found.failed == "path" and ascii(sign) in found.why
    assert str(found).isprintable() or not sign.isprintable()
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_takes_each_path_that_passes(tmp_path: Path) -> None:
    """As PyTorch calls it: a line that is split at blanks, and whose quotes are read."""
    import shlex

    folder = tmp_path / SAFE
    assert probe_folder(folder).usable
    (folder / "a.cpp").write_text("int main() { return 0; }")
    line = f"g++ {folder}/a.cpp -shared -fPIC -I{folder} -L{folder} -o {folder}/a.so"
    subprocess.run(shlex.split(line), check=True)
    subprocess.run(line, shell=True, check=True)


@pytest.mark.parametrize(
    ("options", "failed", "why"),
    [
        ("noexec", "load", "noexec"),
        ("ro", "write", "Read-only file system"),
        ("size=1m", "room", "1024 KiB are free"),
        ("nr_inodes=50", "room", "files can be made"),
    ],
)
def test_a_mount_that_can_do_less_is_refused_and_left_as_it_was(
    tmp_path: Path, options: str, failed: str, why: str
) -> None:
    with tmpfs(tmp_path / "mount", options) as mount:
        found = probe_folder(mount / "home" / ".cache")
        assert found.failed == failed and why in found.why
        assert list(mount.iterdir()) == []


def test_a_mount_that_counts_nothing_is_used(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "mount", "size=0,nr_inodes=0") as mount:
        assert os.statvfs(mount).f_blocks == os.statvfs(mount).f_files == 0
        assert probe_folder(mount / "store").usable


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "mount", "size=80m") as mount:
        assert probe_folder(mount / "a").usable
        (mount / "fill").write_bytes(bytes(70 << 20))
        assert probe_folder(mount / "b").failed == "room"


@pytest.mark.parametrize("answer", ["nothing is done", "not implemented"])
def test_locks_that_do_not_lock_are_seen(tmp_path: Path, monkeypatch, answer: str) -> None:
    def flock(_handle: int, _what: int) -> None:
        if answer == "not implemented":
            raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    found = probe_folder(tmp_path / "store")
    assert found.failed == "lock"
    assert ("Function not implemented" if answer == "not implemented" else "nobody") in found.why
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_is_off_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(folder_probe.time, "time", lambda: now - 365 * 86400)
    found = probe_folder(tmp_path / "store")
    assert found.failed == "clock" and "+31536000 s" in found.why


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_folder_or_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    for theirs in (tmp_path / "a", tmp_path / "b/v1"):
        theirs.mkdir(parents=True)
        os.chown(theirs, 4242, 4242)
    for folder in (tmp_path / "a", tmp_path / "a/store", tmp_path / "b"):
        found = probe_folder(folder)
        assert found.failed == "owner" and "4242" in found.why
    assert not (tmp_path / "a/store").exists()


def test_the_probe_is_done_once_and_is_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = []
    for number in range(31):
        begin = time.thread_time()
        assert probe_folder(tmp_path / str(number)).usable
        seconds.append(time.thread_time() - begin)
    assert statistics.median(seconds) < 0.005
    monkeypatch.setattr(os, "statvfs", lambda _path: pytest.fail("it is probed again"))
    assert probe_folder(tmp_path / "0").usable


def test_the_first_folder_that_passes_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual(monkeypatch, tmp_path / "my home", tmp_path / "tmp")
    (tmp_path / "my home").mkdir()
    temporary = tmp_path / "tmp" / f"cachesvc-{os.geteuid()}"
    named = tmp_path / "it's"
    assert candidates(named) == [named, tmp_path / "my home/.cache/cachesvc", temporary]
    choice = choose_store(named)
    assert choice.root == store_root(named) == default_root() == temporary
    assert [(found.folder, found.failed) for found in choice.refused] == [
        (named, "path"),
        (tmp_path / "my home/.cache/cachesvc", "path"),
    ]
    assert choose_store(tmp_path / "named").root == tmp_path / "named"


def test_if_none_passes_each_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual(monkeypatch, tmp_path / "a b", tmp_path / "c$d")
    monkeypatch.setattr("cachesvc_client.node.store_root._LAST", tmp_path / "last")
    (tmp_path / "a b").mkdir()
    (tmp_path / "last").write_text("a file")
    with pytest.raises(NoFolder) as caught:
        store_root(tmp_path / "e'f")
    for folder in ("a b/.cache/cachesvc", "c$d/cachesvc-", "e'f", "last/cachesvc-"):
        assert f"{tmp_path}/{folder}" in caught.value.message


def test_where_no_path_is_one_for_compilers_there_is_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = tmp_path / "last" / f"cachesvc-{os.geteuid()}"
    monkeypatch.setattr("cachesvc_client.node.store_root._LAST", last.parent)
    usual(monkeypatch, tmp_path / "a b", tmp_path / "c d")
    (tmp_path / "a b").mkdir()
    (tmp_path / "last").mkdir(mode=0o1777)
    assert candidates()[-1] == choose_store().root == last
    assert last.stat().st_mode & 0o077 == 0
    assert last not in candidates(tmp_path / "named"), "a path that compilers take is enough"


def test_another_users_folder_in_the_last_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    last = tmp_path / "last" / "cachesvc-0"
    monkeypatch.setattr("cachesvc_client.node.store_root._LAST", last.parent)
    usual(monkeypatch, tmp_path / "a b", tmp_path / "c d")
    (tmp_path / "a b").mkdir()
    last.mkdir(parents=True)
    os.chown(last, 65534, 65534)
    choice = choose_store()
    assert choice.root is None and choice.refused[-1].failed == "owner"


def test_a_home_that_is_absent_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual(monkeypatch, tmp_path / "nonexistent", tmp_path / "tmp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nonexistent/.cache"))
    assert default_root().parent == tmp_path / "tmp"
    assert not (tmp_path / "nonexistent").exists()


def test_processes_that_probe_one_folder_at_once_all_pass(tmp_path: Path) -> None:
    def probed() -> None:
        with contextlib.suppress(KeyError):
            del folder_probe._KNOWN[tmp_path / "new" / "store"]
        assert probe_folder(tmp_path / "new" / "store").usable
        NodeStore(tmp_path / "new" / "store")

    children = []
    for _ in range(8):
        child = os.fork()
        if not child:
            try:
                probed()
            finally:
                os._exit(0 if probe_folder(tmp_path / "new" / "store").usable else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert run_in_child(probed) == 0
