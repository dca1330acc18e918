"""Test that the processes of one node download and ask once, whatever happens to the process that does it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from cachesvc_client.node.parts import pack_store as store_module
from cachesvc_client.node.store import NodeStore
from cachesvc_client.wire.digest import Digest

DATA = bytes(range(256)) * 2000
DIGEST = Digest.of(DATA)
QUESTION = Digest.of(b"a resolve")
HOLD = """
import os, sys, time
from pathlib import Path
from cachesvc_client.node.store import NodeStore
from cachesvc_client.wire.digest import Digest
def download(offset):
    yield bytes(range(256))
    if "fork" in sys.argv:
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
            os._exit(0)
    else:
        print(os.getpid(), flush=True)
    time.sleep(60)
NodeStore(Path(sys.argv[1])).fetch(Digest(sys.argv[2]), int(sys.argv[3]), download)
"""


@contextlib.contextmanager
def holder(root, *words):
    """Run a process that has downloaded 256 bytes and goes no further; yields it, and the id it printed."""
    command = [sys.executable, "-c", HOLD, str(root), str(DIGEST), str(len(DATA)), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    other = 0
    try:
        other = int(process.stdout.readline())
        yield process
    finally:
        process.kill()
        if other not in (0, process.pid):  # it has the pipe too, which `communicate` reads to its end
            with contextlib.suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
        process.communicate()


def rest(offset):
    yield DATA[offset:]


def test_after_the_downloader_was_killed_the_one_that_waits_takes_over(tmp_path):
    with holder(tmp_path) as process, ThreadPoolExecutor() as pool:
        waiting = pool.submit(NodeStore(tmp_path).fetch, DIGEST, len(DATA), rest)
        time.sleep(0.2)
        assert not waiting.done()
        process.kill()
        path, moved = waiting.result(5)
    assert (path.read_bytes(), moved) == (DATA, len(DATA) - 256)


def test_a_child_of_the_killed_downloader_does_not_keep_the_node_waiting(tmp_path):
    with holder(tmp_path, "fork") as process:
        process.kill()
        process.wait()
        began = time.monotonic()
        path, moved = NodeStore(tmp_path).fetch(DIGEST, len(DATA), rest)
        assert time.monotonic() - began < store_module.STALLED_SECONDS / 2
    assert (path.read_bytes(), moved) == (DATA, len(DATA) - 256)


def test_a_child_that_outlives_the_download_does_not_hold_its_lock(tmp_path):
    children = []

    def download(offset):
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        children.append(child)
        yield DATA[offset:]

    store = NodeStore(tmp_path)
    try:
        store.fetch(DIGEST, len(DATA), download)
        store.discard(DIGEST)
        began = time.monotonic()
        assert NodeStore(tmp_path).fetch(DIGEST, len(DATA), rest)[1] == len(DATA)
        assert time.monotonic() - began < store_module.STALLED_SECONDS / 2
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_container_that_is_paused_in_a_download_does_not_stop_the_node(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "STALLED_SECONDS", 0.4)
    with holder(tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        path, moved = NodeStore(tmp_path).fetch(DIGEST, len(DATA), rest)
        assert (path.read_bytes(), moved) == (DATA, len(DATA))
        assert not list((tmp_path / "v1/tmp").iterdir())
        # The paused one goes on: it replaces the pack by the same bytes, or ends.
        os.kill(process.pid, signal.SIGCONT)
    assert NodeStore(tmp_path).pack(DIGEST, len(DATA)) == path


def test_a_slow_download_is_waited_for_as_long_as_bytes_come(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "STALLED_SECONDS", 0.4)
    begun = threading.Event()

    def slow(offset):
        begun.set()
        for begin in range(offset, len(DATA), 100_000):
            time.sleep(0.2)
            yield DATA[begin : begin + 100_000]

    with ThreadPoolExecutor() as pool:
        first = pool.submit(NodeStore(tmp_path).fetch, DIGEST, len(DATA), slow)
        begun.wait()
        assert NodeStore(tmp_path).fetch(DIGEST, len(DATA), rest)[1] == 0
        assert first.result()[1] == len(DATA)


class Registry:
    """Counts questions, and how many were under way at once; answers after a moment, or never."""

    def __init__(self, root, answers=True):
        self.root, self.answers, self.questions, self.together, self.most = root, answers, 0, 0, 0
        self._lock = threading.Lock()

    def ask(self, seconds=5.0):
        store = NodeStore(self.root)
        with store.answers.one_question(QUESTION, seconds) as waited:
            if waited and store.answers.recent_answer(QUESTION) is not None:
                return
            with self._lock:
                self.questions, self.together = self.questions + 1, self.together + 1
                self.most = max(self.most, self.together)
            time.sleep(0.3)
            with self._lock:
                self.together -= 1
            if self.answers:
                store.answers.remember_answer(QUESTION, b"an answer")


def all_at_once(registry, seconds=5.0, number=8):
    began = time.monotonic()
    with ThreadPoolExecutor(number) as pool:
        for each in [pool.submit(registry.ask, seconds) for _ in range(number)]:
            each.result()
    return time.monotonic() - began


def test_one_of_eight_asks_and_seven_take_its_answer(tmp_path):
    registry = Registry(tmp_path)
    all_at_once(registry)
    assert registry.questions == 1


def test_where_the_first_got_no_answer_the_others_do_not_queue_up(tmp_path):
    registry = Registry(tmp_path, answers=False)
    assert all_at_once(registry) < 8 * 0.3
    assert (registry.questions, registry.most > 3) == (8, True)


def test_nobody_waits_longer_than_asked_for_one_that_hangs(tmp_path):
    store = NodeStore(tmp_path)
    with store.answers.one_question(QUESTION, 5.0) as waited:
        assert not waited
        began = time.monotonic()
        with NodeStore(tmp_path).answers.one_question(QUESTION, 0.3) as also:
            assert also
        assert 0.25 < time.monotonic() - began < 2


def test_without_room_for_a_lock_everybody_asks(tmp_path):
    store = NodeStore(tmp_path)
    (tmp_path / "v1/locks").rmdir()
    with store.answers.one_question(QUESTION, 1.0) as waited:
        assert not waited
