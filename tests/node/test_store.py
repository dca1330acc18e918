"""Test the node store: one download per node, resumed after a kill at any step, bounded, and private to one
user."""

import ctypes
import functools
import json
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from packing import FILES, kill_at_step, make_pack, run_in_child

from cachesvc_client.bundle.pack import PackReader, SourceFile
from cachesvc_client.node.store import NodeStore, default_root
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, StorageFull, TooLarge, Unavailable, Untrusted

DATA = random.Random(5).randbytes(500_000)
DIGEST = Digest.of(DATA)


class Source:
    """Serves DATA in pieces and notes the offsets of its calls."""

    def __init__(self, data=DATA, end=None):
        self.data, self.end, self.asked = data, end, []

    def __call__(self, offset):
        self.asked.append(offset)
        for begin in range(offset, len(self.data), 100_000):
            if self.end is not None and begin >= self.end:
                return
            yield self.data[begin : begin + 100_000]


def test_a_pack_is_downloaded_once(tmp_path):
    store, source = NodeStore(tmp_path), Source()
    assert store.pack(DIGEST) is None
    path, downloaded_bytes = store.fetch(DIGEST, len(DATA), source)
    assert (path.read_bytes(), downloaded_bytes) == (DATA, len(DATA))
    assert NodeStore(tmp_path).fetch(DIGEST, len(DATA), source) == (path, 0)
    assert NodeStore(tmp_path).pack(DIGEST) == path
    assert source.asked == [0]
    assert not list((tmp_path / "v1/partial").iterdir())


def test_a_download_that_ends_early_is_resumed(tmp_path):
    store = NodeStore(tmp_path)
    with pytest.raises(Unavailable, match="ended at 300000 of 500000"):
        store.fetch(DIGEST, len(DATA), Source(end=300_000))
    source = Source()
    path, downloaded_bytes = store.fetch(DIGEST, len(DATA), source)
    assert (path.read_bytes(), downloaded_bytes, source.asked) == (DATA, 200_000, [300_000])


def test_an_error_of_the_network_is_not_reported_as_one_of_the_disk(tmp_path):
    def broken(_offset):
        yield DATA[:10]
        raise ConnectionResetError("peer went away")

    with pytest.raises(Unavailable, match="peer went away"):
        NodeStore(tmp_path).fetch(DIGEST, len(DATA), broken)
    assert NodeStore(tmp_path).fetch(DIGEST, len(DATA), Source())[1] == len(DATA) - 10


@pytest.mark.parametrize("data", [bytes(len(DATA)), DATA + b"more", bytes(len(DATA)) + b"more"])
def test_other_bytes_than_promised_are_refused_and_deleted(tmp_path, data):
    with pytest.raises(Corrupt, match=r"is not this pack"):
        NodeStore(tmp_path).fetch(DIGEST, len(DATA), Source(data))
    assert not list((tmp_path / "v1/partial").iterdir())
    assert not list((tmp_path / "v1/packs").iterdir())


@pytest.mark.parametrize("leftover", [b"rubbish", DATA[:7] + b"?", bytes(len(DATA)), DATA + b"longer", DATA])
def test_after_a_killed_process_with_any_leftover_the_next_has_the_pack(tmp_path, leftover):
    store = NodeStore(tmp_path)
    (tmp_path / "v1/partial" / DIGEST.hex).write_bytes(leftover)
    path, _ = store.fetch(DIGEST, len(DATA), Source())
    assert path.read_bytes() == DATA


def test_a_download_killed_at_any_step_is_continued(tmp_path):
    steps = 0
    for at in range(1, 100):
        root = tmp_path / str(at)
        store = NodeStore(root, step=kill_at_step(at))
        status = run_in_child(functools.partial(store.fetch, DIGEST, len(DATA), Source()))
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        steps += 1
        path, downloaded_bytes = NodeStore(root).fetch(DIGEST, len(DATA), Source())
        assert path.read_bytes() == DATA
        assert downloaded_bytes == {1: 500_000, 2: 500_000, 8: 0, 9: 0}.get(at, 500_000 - 100_000 * (at - 2))
    assert steps == 9  # The steps are: locked, opened, 5 chunks, downloaded, renamed.


def test_eight_processes_at_once_download_once_and_install_all(tmp_path):
    chance = random.Random(6)
    files = [
        *FILES,
        *(SourceFile("inductor", f"aa/f{i}.so", chance.randbytes(20_000)) for i in range(60)),
    ]
    _, manifest = make_pack(tmp_path, files)
    (tmp_path / "manifest").write_bytes(manifest.encode())
    script = Path(__file__).with_name("node_process.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script), str(tmp_path), str(time.time() + 1)]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    answers = [json.loads(process.communicate()[0]) for process in running]
    assert [process.returncode for process in running] == [0] * 8
    assert sorted(answer["moved"] for answer in answers) == [0] * 7 + [manifest.pack.size]
    # Exactly one process wrote each file, and the seven others kept it.
    assert sum(answer["written"] for answer in answers) == len(files)
    assert sum(answer["kept"] for answer in answers) == 7 * len(files)
    for file in files:
        content = (tmp_path / "caches" / file.kind / file.path).read_bytes()
        assert content.replace(str(tmp_path / "caches/triton").encode(), b"@ROOT@") == file.data


def set_age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def fill(store, count, size=1000):
    digests = []
    for index in range(count):
        data = bytes([index]) * size
        digests.append(Digest.of(data))
        path, _ = store.fetch(digests[-1], size, Source(data))
        set_age(path, 1000 - index)
    return digests


def test_the_least_recently_used_packs_are_deleted(tmp_path):
    store = NodeStore(tmp_path, max_bytes=3500)
    first, second, third = fill(store, 3)
    store.pack(first)  # This pack is used again.
    data = b"new" * 500
    store.fetch(Digest.of(data), len(data), Source(data))
    assert [store.pack(digest) is not None for digest in (first, second, third)] == [True, False, True]


def test_packs_in_use_and_recently_returned_packs_stay(tmp_path):
    path, manifest = make_pack(tmp_path)
    store = NodeStore(tmp_path / "store", max_bytes=manifest.pack.size)
    path, _ = store.fetch(manifest.pack.digest, manifest.pack.size, Source(path.read_bytes()))
    store.max_bytes = 1
    store.evict()
    assert path.exists(), "the store returned it a moment ago"
    set_age(path, 1000)
    with PackReader(path, manifest):
        store.evict()
        assert path.exists(), "a process reads it"
    store.evict()
    assert not path.exists()


def test_a_pack_larger_than_the_bound_is_stored(tmp_path):
    with pytest.raises(TooLarge, match="the node store holds 10"):
        NodeStore(tmp_path, max_bytes=10).fetch(DIGEST, len(DATA), Source())


def test_leftovers_are_deleted_after_a_day(tmp_path):
    store = NodeStore(tmp_path)
    for part in ("partial", "tmp", "locks"):
        (tmp_path / "v1" / part / "old").write_bytes(b"")
        set_age(tmp_path / "v1" / part / "old", 25 * 3600)
        (tmp_path / "v1" / part / "new").write_bytes(b"")
    store.evict()
    for part in ("partial", "tmp", "locks"):
        assert not (tmp_path / "v1" / part / "old").exists()
        assert (tmp_path / "v1" / part / "new").exists()


def test_a_full_disk_is_one_line_and_leaves_no_partial(tmp_path):
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        with pytest.raises(StorageFull, match=r"No space left.*free some room"):
            NodeStore(mounted).fetch(DIGEST, len(DATA), Source())
        assert not list((mounted / "v1/partial").iterdir())
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_file_size_limit_is_one_line_too(tmp_path):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        with pytest.raises(StorageFull, match="File too large"):
            NodeStore(tmp_path).fetch(DIGEST, len(DATA), Source())

    assert run_in_child(limited) == 0
    assert not list((tmp_path / "v1/partial").iterdir())


def test_a_user_namespace_that_does_not_know_root_has_a_store():
    """As in Apptainer and bubblewrap: ``/`` belongs to nobody there. A folder of a user whom the namespace
    knows is as foreign as ever."""
    user = os.geteuid() or 1234

    def in_a_namespace():
        libc = ctypes.CDLL(None, use_errno=True)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            libc.prctl(PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root
        if libc.unshare(CLONE_NEWUSER) != 0:
            os._exit(NO_NAMESPACE)
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        assert Path("/").stat().st_uid == 65534
        folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folder is root's
        try:
            NodeStore(folder).fetch(DIGEST, len(DATA), Source())
            folder.chmod(0o777)
            with pytest.raises(Untrusted, match="others may write"):
                NodeStore(folder)
        finally:
            shutil.rmtree(folder)

    status = os.waitstatus_to_exitcode(run_in_child(in_a_namespace))
    if status == NO_NAMESPACE:
        pytest.skip("this machine allows no user namespace")
    assert status == 0


NO_NAMESPACE, CLONE_NEWUSER, PR_SET_DUMPABLE = 77, 0x10000000, 4


def test_a_root_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFull, match="set CACHESVC_STORE"):
        NodeStore(tmp_path / "file" / "store")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_store_of_another_user_is_refused(tmp_path):
    store = NodeStore(tmp_path)
    os.chown(store.folders.open(DIGEST), 12345, 12345)
    with pytest.raises(Untrusted, match="belongs to user 12345"):
        store.folders.open(DIGEST)
    os.chown(tmp_path / "v1", 12345, 12345)
    with pytest.raises(Untrusted, match="belongs to user 12345"):
        NodeStore(tmp_path)


def test_private_folders_are_separate(tmp_path):
    store = NodeStore(tmp_path)
    path = store.folders.open(DIGEST)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert store.folders.open(DIGEST) == path
    path.chmod(0o770)
    with pytest.raises(Untrusted, match="others may write"):
        store.folders.open(DIGEST)
    path.rmdir()
    path.symlink_to(tmp_path)
    for one in (store, NodeStore(tmp_path)):
        with pytest.raises(Untrusted, match="is not a folder"):
            one.folders.open(DIGEST)
    assert list(tmp_path.iterdir()) == [tmp_path / "v1"], "the target of a link is not emptied"


def unused(tmp_path):
    """Let the next sweep find nothing that changed lately."""
    for path, _, _ in os.walk(tmp_path / "v1/folders"):
        set_age(Path(path), 3600)


def test_each_first_process_has_a_new_private_folder_and_others_share_it(tmp_path):
    def compiles():
        (NodeStore(tmp_path).folders.open(DIGEST) / "deep/er").mkdir(parents=True)

    assert run_in_child(compiles) == 0
    [old] = (tmp_path / "v1/folders").iterdir()
    (old / "deep/er/planted").write_text("by a process that has ended")
    store = NodeStore(tmp_path)
    path = store.folders.open(DIGEST)
    assert path != old and not list(path.iterdir())
    assert (old / "deep/er/planted").exists(), "nobody is waited for"
    (path / "mine").write_text("compiled meanwhile")
    assert NodeStore(tmp_path).folders.open(DIGEST) == path  # The same process opens it once more.
    assert run_in_child(lambda: (NodeStore(tmp_path).folders.open(DIGEST) / "mine").read_text()) == 0
    store.folders.leave(path)
    assert NodeStore(tmp_path).folders.open(DIGEST) == path, (
        "another store of this process has the folder open"
    )
    unused(tmp_path)
    store.sweep_folders()
    assert [*(tmp_path / "v1/folders").iterdir()] == [path]


def test_a_folder_of_one_process_is_empty_and_private(tmp_path):
    mine = NodeStore(tmp_path).folders.open_own("driver")

    def other():
        theirs = NodeStore(tmp_path).folders.open_own("driver")
        assert theirs != mine and not list(theirs.iterdir())

    assert run_in_child(other) == 0
    again = NodeStore(tmp_path).folders.open_own("driver")
    assert again != mine and not list(again.iterdir()), "the folder of the process that has ended"
    unused(tmp_path)
    NodeStore(tmp_path).sweep_folders()
    assert {*(tmp_path / "v1/folders").iterdir()} == {mine, again}


def test_after_a_kill_while_a_folder_is_removed_the_next_goes_on(tmp_path):
    def leaves():
        (NodeStore(tmp_path).folders.open(DIGEST) / "left").write_text("x")

    assert run_in_child(leaves) == 0
    unused(tmp_path)
    assert run_in_child(lambda: NodeStore(tmp_path, step=kill_at_step(1)).sweep_folders()) != 0
    [gone] = (tmp_path / "v1/folders").iterdir()
    assert gone.name.endswith(".gone")
    NodeStore(tmp_path).sweep_folders()
    assert not list((tmp_path / "v1/folders").iterdir()) and not list((tmp_path / "v1/users").iterdir())


def use_without_descriptors(tmp_path, ready, until):
    """Open a private folder, close every descriptor, and use the folder in a forked child."""
    NodeStore(tmp_path).folders.open(DIGEST)
    if os.fork():
        os._exit(0)
    os.closerange(0, 1024)
    ready.touch()
    while not until.exists():
        time.sleep(0.01)
    os._exit(0)


@pytest.mark.parametrize("lock", ["mapped", "open"])
def test_a_forked_child_without_descriptors_keeps_a_folder(tmp_path, monkeypatch, lock):
    """Where a mapping does not keep the lock of a mark (overlayfs), the mark names the process."""
    if lock == "open":
        monkeypatch.setattr("cachesvc_client.node.folder_users._map", lambda _: None)
    store, ready, until = NodeStore(tmp_path / "store"), tmp_path / "ready", tmp_path / "until"
    try:
        run_in_child(lambda: use_without_descriptors(tmp_path / "store", ready, until))
        while not ready.exists():
            time.sleep(0.01)
        [path] = (tmp_path / "store/v1/folders").iterdir()
        store.folders.sweep(settled=0)
        assert path.exists() and store.folders.open(DIGEST) == path, "a process that lives shares it"
        store.folders.leave(path)
    finally:
        until.touch()
    while path.exists():  # The child ends.
        store.folders.sweep(settled=0)


@pytest.mark.parametrize(
    ("kernel", "days", "stays"), [("", 30, True), ("another", 1, True), ("another", 8, False)]
)
def test_the_mark_of_another_host_ends_by_age_alone(tmp_path, kernel, days, stays):
    store = NodeStore(tmp_path)
    folder, _ = store.folders.open(DIGEST), store.folders.open_own("other")
    [mark] = (tmp_path / "v1/users").glob(f"{folder.name}.*")
    words = mark.read_text().split()
    store.folders.leave(folder)
    mark.write_text(" ".join([kernel or words[0], *words[1:4], "open"]))
    set_age(mark, days * 24 * 3600)
    store.folders.sweep(settled=0)
    assert folder.exists() == stays


def test_a_folder_in_which_something_changed_lately_stays(tmp_path):
    """A process that names it may hide that: its title can lie where its variables were."""
    assert run_in_child(lambda: (NodeStore(tmp_path).folders.open(DIGEST) / "a/b").mkdir(parents=True)) == 0
    [path] = (tmp_path / "v1/folders").iterdir()
    unused(tmp_path)
    (path / "a/b/now").touch()
    NodeStore(tmp_path).sweep_folders()
    assert path.exists()
    unused(tmp_path)
    NodeStore(tmp_path).sweep_folders()
    assert not path.exists()


def test_where_processes_cannot_be_seen_in_time_folders_go_by_age(tmp_path, monkeypatch):
    monkeypatch.setattr("cachesvc_client.node.parts.private_folders.SWEEP_SECONDS", -1.0)
    assert run_in_child(lambda: NodeStore(tmp_path).folders.open(DIGEST)) == 0
    [path] = (tmp_path / "v1/folders").iterdir()
    unused(tmp_path)
    NodeStore(tmp_path).sweep_folders()
    assert path.exists()
    set_age(path, 8 * 24 * 3600)
    NodeStore(tmp_path).sweep_folders()
    assert not path.exists()


def test_sequences_only_rise(tmp_path):
    store = NodeStore(tmp_path)
    assert store.marks.sequences(DIGEST) == {}
    for sequence in (5, 3):
        store.marks.record_sequence(DIGEST, sequence, "one")
    store.marks.record_sequence(DIGEST, 4, "two")
    assert NodeStore(tmp_path).marks.sequences(DIGEST) == {"one": 5, "two": 4}
    for rubbish in ("rubbish", "a b c", "a b", "\udcff"):
        (tmp_path / "v1/seen" / DIGEST.hex).write_text(rubbish, errors="surrogateescape")
        assert store.marks.sequences(DIGEST) == {}
    for number in range(100):
        store.marks.record_sequence(DIGEST, number + 1, f"key {number}".replace(" ", "-"))
    kept = store.marks.sequences(DIGEST)
    assert len(kept) == 64 and min(kept.values()) == 37


def test_a_distrusted_revision_stays_marked_until_another_replaces_it(tmp_path, monkeypatch):
    monkeypatch.setattr("cachesvc_client.node.parts.revision_marks._MAX_DISTRUSTED", 3)
    store, other = NodeStore(tmp_path), Digest.of(b"another revision")
    assert not store.marks.distrusts(DIGEST, other)
    store.marks.distrust(DIGEST, other)
    again = NodeStore(tmp_path)
    assert again.marks.distrusts(DIGEST, other) and not again.marks.distrusts(DIGEST, DIGEST)
    again.marks.trust_again(DIGEST, DIGEST)
    again.marks.trust_again(DIGEST, DIGEST)
    assert not store.marks.distrusts(DIGEST, other)
    entries = [Digest.of(b"entry %d" % number) for number in range(5)]
    for age, entry in enumerate(entries):
        store.marks.distrust(entry, other)
        os.utime(tmp_path / "v1/distrusted" / entry.hex, (age, age))
    assert [store.marks.distrusts(entry, other) for entry in entries] == [False, False, True, True, True]
    (tmp_path / "v1/distrusted" / entries[4].hex).write_bytes(b"\xff")
    assert not store.marks.distrusts(entries[4], other)


def test_answers_are_valid_for_seconds(tmp_path):
    store = NodeStore(tmp_path)
    assert store.answers.recent_answer(DIGEST) is None
    store.answers.remember_answer(DIGEST, b"answer")
    assert store.answers.recent_answer(DIGEST, max_age=3600) == b"answer"
    set_age(tmp_path / "v1/resolved" / DIGEST.hex, 6)
    assert store.answers.recent_answer(DIGEST) is None
    set_age(tmp_path / "v1/resolved" / DIGEST.hex, -100)
    assert store.answers.recent_answer(DIGEST) is None, "the clock went back"
    store.answers.remember_answer(DIGEST, b"answer", age=4.9)
    assert store.answers.recent_answer(DIGEST) == b"answer"
    store.answers.remember_answer(DIGEST, b"answer", age=5.1)
    assert store.answers.recent_answer(DIGEST) is None, "the registry had remembered it before"
    assert (
        store.answers.answer_age(DIGEST) >= 5.1
        and store.answers.recent_answer(DIGEST, max_age=3600) == b"answer"
    )


@pytest.mark.parametrize("leftover", [b"", DATA[:-1]])
def test_a_pack_that_a_power_failure_cut_short_is_downloaded_again(tmp_path, leftover):
    store = NodeStore(tmp_path)
    path, _ = store.fetch(DIGEST, len(DATA), Source())
    path.write_bytes(leftover)
    assert store.fetch(DIGEST, len(DATA), Source())[1] == len(DATA)
    assert path.read_bytes() == DATA


def test_a_damaged_pack_is_deleted(tmp_path):
    store = NodeStore(tmp_path)
    path, _ = store.fetch(DIGEST, len(DATA), Source())
    path.write_bytes(bytes(len(DATA)))
    assert store.fetch(DIGEST, len(DATA), Source())[1] == 0
    store.discard(DIGEST)
    assert store.fetch(DIGEST, len(DATA), Source())[1] == len(DATA)


def test_the_default_root_is_the_first_writable_folder(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (tmp_path / "file").write_bytes(b"")
    for name in ("CACHESVC_STORE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))  # There is no home.
    assert default_root() == temporary / f"cachesvc-{os.geteuid()}"
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_root() == tmp_path / "home/.cache/cachesvc"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg/cachesvc"
    monkeypatch.setenv("CACHESVC_STORE", str(tmp_path / "named"))
    assert default_root() == tmp_path / "named"


def test_a_default_root_that_others_may_write_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("CACHESVC_STORE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    trap = tmp_path / f"cachesvc-{os.geteuid()}"
    trap.mkdir()
    trap.chmod(0o777)
    with pytest.raises(StorageFull, match="set CACHESVC_STORE"):
        default_root()
