"""Test what a node knows of a process that crashed while it loaded restored code, and of one that did not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc_client.node.parts.revision_marks import CRASH_SECONDS, RevisionMarks
from cachesvc_client.node.store import NodeStore
from cachesvc_client.wire.digest import Digest

ENTRY, REVISION, OTHER = (Digest.of(text) for text in (b"entry", b"revision", b"other"))

PROGRAM = """
import ctypes, faulthandler, fcntl, os, signal, sys, threading, time
from pathlib import Path
from cachesvc_client.node.store import NodeStore
from cachesvc_client.wire.digest import Digest

store = NodeStore(Path(sys.argv[1]))
suspects = [(Digest(sys.argv[2]), Digest(sys.argv[3]))]

def crash():
    ctypes.string_at(0)

def fail():
    raise OSError("no such symbol")

def end_elsewhere():
    def wait():
        with store.marks.loading(suspects):
            ready.set()
            time.sleep(600)
    ready = threading.Event()
    threading.Thread(target=wait, daemon=True).start()
    ready.wait()

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0) if sys.argv[4] == "fork" else sys.exit(0)
    os.waitpid(child, 0)

def outlive():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"1")
        time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    print(child, flush=True)
    os.abort()

def take_all_memory():
    all_of_it = []
    while True:
        all_of_it.append(bytearray(os.urandom(1 << 20)))

def ask_to_end(number):
    os.kill(os.getpid(), number)
    time.sleep(60)

def handled():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

def hang(crashes):
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    if crashes:
        threading.Timer(1.0, crash).start()
    print("loading", flush=True)
    libc.pthread_mutex_lock(mutex)

def unlock():
    fcntl.flock(store.marks._load_mark._place[0], fcntl.LOCK_UN)
    print("loading", flush=True)
    time.sleep(600)

def load():
    act = {
        "segv": crash, "abort": os.abort, "exit": lambda: os._exit(1),
        "term": lambda: ask_to_end(signal.SIGTERM), "hup": lambda: ask_to_end(signal.SIGHUP),
        "handled": handled,
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "exception": fail, "system exit": sys.exit, "fork": fork, "fork and exit": fork, "outlived": outlive,
        "bus": lambda: os.kill(os.getpid(), signal.SIGBUS), "own words": os.abort, "memory": take_all_memory,
        "unlocked": unlock, "hangs": lambda: hang(False), "hangs and crashes": lambda: hang(True),
        "xcpu": lambda: os.kill(os.getpid(), signal.SIGXCPU),
        "alarm": lambda: os.kill(os.getpid(), signal.SIGALRM),
        "done": lambda: None, "wait": lambda: (print("loading", flush=True), time.sleep(600)),
    }[sys.argv[4]]
    with store.marks.loading(suspects):
        act()

if sys.argv[4] == "daemon thread":
    end_elsewhere()
elif sys.argv[4] == "after a load":
    with store.marks.loading(suspects):
        pass
    os.abort()
else:
    if sys.argv[4].startswith("hangs"):  # as a worker of Gunicorn before its application
        signal.signal(signal.SIGABRT, lambda *_: sys.exit(1))
    if sys.argv[4] == "own words":
        faulthandler.enable(words := open(sys.argv[1] + "/words", "w"))
    load()
"""


def _start(root: Path, how: str, **options: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM, str(root), str(ENTRY), str(REVISION), how]
    return subprocess.Popen(words, text=True, **options)


def _dies(root: Path, how: str, code: int | None = None) -> None:
    status = _start(root, how, stderr=subprocess.DEVNULL).wait(60)
    assert status == code if code is not None else status != 0


@pytest.mark.parametrize("how", ["segv", "abort", "bus"])
def test_what_two_processes_crashed_of_is_not_installed_for_a_while(tmp_path: Path, how: str) -> None:
    _dies(tmp_path, how)
    store = NodeStore(tmp_path)
    assert not store.marks.distrusts(ENTRY, REVISION), "one is no verdict"
    assert list((tmp_path / "v1/loading").iterdir()) == []
    store.marks.trust_again(ENTRY, REVISION)  # as a restore that installs it again
    _dies(tmp_path, how)
    assert store.marks.distrusts(ENTRY, REVISION) and not store.marks.distrusts(ENTRY, OTHER)
    mark = store.marks.crashed_of(ENTRY, REVISION)
    assert mark is not None and store.marks.crashed_of(ENTRY, OTHER) is None
    age = time.time() - CRASH_SECONDS - 60
    os.utime(mark, (age, age))
    assert not store.marks.distrusts(ENTRY, REVISION), "it ends by itself"
    _dies(tmp_path, how)
    assert not store.marks.distrusts(ENTRY, REVISION), "and then one is no verdict again"
    _dies(tmp_path, how)
    assert store.marks.distrusts(ENTRY, REVISION)
    mark.unlink()
    assert not store.marks.distrusts(ENTRY, REVISION), "removing the file is what the message says"


def test_another_revision_takes_the_crash_of_an_older_one_away(tmp_path: Path) -> None:
    _dies(tmp_path, "abort")
    store = NodeStore(tmp_path)
    store.marks.trust_again(ENTRY, OTHER)
    _dies(tmp_path, "abort")
    assert not store.marks.distrusts(ENTRY, REVISION)


def test_a_crash_does_not_soften_what_a_canary_said(tmp_path: Path) -> None:
    store = NodeStore(tmp_path)
    store.marks.distrust(ENTRY, REVISION)
    _dies(tmp_path, "abort")
    assert store.marks.distrusts(ENTRY, REVISION) and store.marks.crashed_of(ENTRY, REVISION) is None


@pytest.mark.parametrize("how", ["kill", "exit", "own words", "xcpu", "alarm"])
def test_whoever_kills_processes_in_a_load_withdraws_nothing(tmp_path: Path, how: str) -> None:
    """Nor does a program that keeps the words about its crashes for itself."""
    for _ in range(3):
        _dies(tmp_path, how)
        store = NodeStore(tmp_path)
        assert not store.marks.distrusts(ENTRY, REVISION) and store.marks.crashed_of(ENTRY, REVISION) is None
    assert list((tmp_path / "v1/loading").iterdir()) == list((tmp_path / "v1/distrusted").iterdir()) == []
    assert how != "own words" or "Fatal Python error: Aborted" in (tmp_path / "words").read_text()


@pytest.mark.parametrize(("how", "counts"), [("hangs", False), ("hangs and crashes", True)])
def test_a_supervisor_that_aborts_a_worker_which_is_slow_to_load_withdraws_nothing(
    tmp_path: Path, how: str, counts: bool
) -> None:
    """As Gunicorn does after its timeout: SIGABRT, for which its workers have a handler, and then SIGKILL."""
    for number in range(2):
        process = _start(tmp_path, how, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        time.sleep(0.3)  # it is in the library by now, and Python's own handler waits
        process.send_signal(signal.SIGABRT)
        if counts:
            assert process.wait(60) == -signal.SIGSEGV
        else:
            time.sleep(0.3)
            assert process.poll() is None
            process.kill()
            process.wait(60)
        assert list((tmp_path / "v1/loading").iterdir())
        assert NodeStore(tmp_path).marks.distrusts(ENTRY, REVISION) is (counts and number == 1)


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group whose processes have 64 MiB together."""
    bounds = {"memory/tests": "memory.limit_in_bytes", "tests": "memory.max"}
    for name, bound in bounds.items():
        group = Path("/sys/fs/cgroup") / f"{name}-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / bound).write_text(str(64 << 20))
                yield group
                return
            finally:
                group.rmdir()
    pytest.skip("needs the right to bound the memory of a group of processes")


def test_the_kernel_that_kills_where_memory_ran_out_withdraws_nothing(
    tmp_path: Path, memory_group: Path
) -> None:
    for _ in range(2):
        words = ["sh", "-c", f'echo $$ > {memory_group}/cgroup.procs && exec "$@"', "sh"]
        words += [sys.executable, "-c", PROGRAM, str(tmp_path), str(ENTRY), str(REVISION), "memory"]
        assert subprocess.run(words, capture_output=True).returncode == -signal.SIGKILL
    assert not NodeStore(tmp_path).marks.distrusts(ENTRY, REVISION)


@pytest.mark.parametrize(
    "how",
    ["done", "exception", "system exit", "daemon thread", "fork", "fork and exit", "after a load"],
)
def test_a_process_that_ends_by_itself_or_after_its_loads_died_of_none(tmp_path: Path, how: str) -> None:
    _start(tmp_path, how, stderr=subprocess.DEVNULL).wait(60)
    store = NodeStore(tmp_path)
    assert not store.marks.distrusts(ENTRY, REVISION) and store.marks.crashed_of(ENTRY, REVISION) is None
    assert list((tmp_path / "v1/loading").iterdir()) == []


@pytest.mark.parametrize(
    ("how", "status"), [("term", -signal.SIGTERM), ("hup", -signal.SIGHUP), ("handled", 3)]
)
def test_a_process_that_is_asked_to_end_died_of_none_and_ends_as_without_us(
    tmp_path: Path, how: str, status: int
) -> None:
    """As a rollout that ends a pod while it starts."""
    assert _start(tmp_path, how, stderr=subprocess.DEVNULL).wait(30) == status
    store = NodeStore(tmp_path)
    assert not store.marks.distrusts(ENTRY, REVISION)
    assert list((tmp_path / "v1/loading").iterdir()) == []


def test_signals_are_as_before_after_a_load_and_in_a_forked_child(tmp_path: Path) -> None:
    """A child that a signal ends writes into no file of its parent's."""
    store, before = (
        NodeStore(tmp_path),
        Path("/proc/self/status").read_text().partition("SigCgt:")[2].split()[0],
    )

    def caught() -> str:
        return Path("/proc/self/status").read_text().partition("SigCgt:")[2].split()[0]

    with store.marks.loading([(ENTRY, REVISION)]):
        assert caught() != before
        child = os.fork()
        if child == 0:
            os._exit(caught() != before)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert caught() == before


def test_a_child_that_outlives_a_crash_does_not_hide_it(tmp_path: Path) -> None:
    _dies(tmp_path, "abort")
    process = _start(tmp_path, "outlived", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.wait(60)
    try:
        assert NodeStore(tmp_path).marks.distrusts(ENTRY, REVISION)
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_a_process_loads_now_is_no_suspect(tmp_path: Path) -> None:
    """Two engines of a node start at once."""
    process = _start(tmp_path, "wait", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None and process.stdout.readline() == "loading\n"
    NodeStore(tmp_path).marks.distrusts(ENTRY, REVISION)
    assert len(list((tmp_path / "v1/loading").iterdir())) == 1
    for _ in range(2):
        process.send_signal(signal.SIGABRT)
        process.wait()
        process = _start(tmp_path, "wait", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
    assert NodeStore(tmp_path).marks.distrusts(ENTRY, REVISION)
    process.kill()
    process.wait()


def test_a_living_process_whose_lock_is_gone_is_no_suspect(tmp_path: Path) -> None:
    """As where locks do nothing, or a program has closed all files."""
    for _ in range(3):
        process = _start(tmp_path, "unlocked", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        try:
            marks = NodeStore(tmp_path).marks
            assert not marks.distrusts(ENTRY, REVISION) and marks.crashed_of(ENTRY, REVISION) is None
            assert list((tmp_path / "v1/distrusted").iterdir()) == []
        finally:
            process.kill()
            process.wait()


def test_of_processes_that_look_at_once_each_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes after the first has removed the mark of the dead process."""
    for _ in range(2):
        _dies(tmp_path, "abort")
    put = RevisionMarks._mark
    known: list[bool] = []

    def slowly(marks: RevisionMarks, entry: Digest, mark: bytes) -> None:
        late = threading.Thread(
            target=lambda: known.append(NodeStore(tmp_path).marks.distrusts(ENTRY, REVISION))
        )
        monkeypatch.setattr(RevisionMarks, "_mark", put)
        late.start()
        time.sleep(0.2)
        put(marks, entry, mark)
        threads.append(late)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(RevisionMarks, "_mark", slowly)
    assert NodeStore(tmp_path).marks.distrusts(ENTRY, REVISION)
    threads[0].join(60)
    assert known == [True]


def test_loads_beside_and_inside_each_other_are_told_apart(tmp_path: Path) -> None:
    store = NodeStore(tmp_path)

    def said() -> set[str]:
        [mark] = (tmp_path / "v1/loading").iterdir()
        return {line.split()[1] for line in mark.read_text().splitlines()}

    with store.marks.loading([(ENTRY, REVISION)]):
        with store.marks.loading([(ENTRY, OTHER)]):
            assert said() == {str(REVISION), str(OTHER)}
        assert said() == {str(REVISION)}
    assert said() == set()


def test_a_program_that_closes_all_files_loses_none_of_its_own(tmp_path: Path) -> None:
    store, own = NodeStore(tmp_path / "store"), tmp_path / "own"
    with store.marks.loading([(ENTRY, OTHER)]):
        pass
    place = store.marks._load_mark._place
    assert place is not None
    handle = os.open(own, os.O_RDWR | os.O_CREAT)
    os.write(handle, b"precious")
    os.dup2(handle, place[0])
    with store.marks.loading([(ENTRY, REVISION)]):
        assert own.read_bytes() == b"precious"
    os.close(handle)
    store.marks._load_mark._end()
    assert own.read_bytes() == b"precious"


@contextlib.contextmanager
def _no_room(root: Path) -> Iterator[None]:
    (root / "v1/loading").rmdir()
    (root / "v1/loading").write_bytes(b"")
    yield


def test_without_room_for_a_mark_a_load_goes_on(tmp_path: Path) -> None:
    store, loaded = NodeStore(tmp_path), []
    with _no_room(tmp_path), store.marks.loading([(ENTRY, REVISION)]):
        loaded.append(1)
    assert loaded == [1] and not store.marks.distrusts(ENTRY, REVISION)


@pytest.mark.parametrize("said", [b"", b"\xff\xfe", b"sha256:12 sha256:34\n", b"x" * 100_000, b"a b c\n"])
def test_a_mark_that_says_nothing_is_removed(tmp_path: Path, said: bytes) -> None:
    store = NodeStore(tmp_path)
    (tmp_path / "v1/loading/mark").write_bytes(said)
    assert not store.marks.distrusts(ENTRY, REVISION)
    assert list((tmp_path / "v1/loading").iterdir()) == []
    assert list((tmp_path / "v1/distrusted").iterdir()) == []
