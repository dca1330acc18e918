"""Test when the activity watch of a process calls its listeners: at a pause, at quiet, and at exit."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from cachesvc_client.hooks import activity
from cachesvc_client.hooks.activity import ActivityWatch, Moment


class Compiler:
    """Stands for the compilers of a process: has a count of compiles, and whether one is under way."""

    def __init__(self) -> None:
        self.compiles = 0
        self.busy = False

    def look(self) -> int | None:
        return self.compiles or None


class Calls:
    """Notes each moment at which it is called as a listener."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._changed = threading.Condition()

    def __call__(self, moment: Moment, deadline: float) -> None:
        assert deadline > time.monotonic() - 60
        with self._changed:
            self.moments.append(moment)
            self._changed.notify_all()

    def wait(self, moment: Moment, count: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.moments.count(moment) >= count, 60), self.moments


@pytest.fixture
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def watch(compiler: Compiler, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> Iterator[ActivityWatch]:
    monkeypatch.setattr(activity, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(activity, "QUIET_SECONDS", 0.2)
    activity_watch = ActivityWatch(compiler.look, busy=lambda: compiler.busy)
    activity_watch.listeners.append(calls)
    yield activity_watch
    compiler.compiles = 0


def test_listeners_hear_once_of_the_pause_and_of_the_quiet_after_a_compile(
    watch: ActivityWatch, compiler: Compiler, calls: Calls
) -> None:
    compiler.compiles = 1
    watch.compiled()
    calls.wait("quiet")
    time.sleep(1)
    assert calls.moments == ["compiled", "quiet"]


def test_a_later_compile_is_seen_also_if_no_call_announces_it(
    watch: ActivityWatch, compiler: Compiler, calls: Calls
) -> None:
    """PyTorch compiles a backward graph at its first use, outside of the function that calls the watch."""
    compiler.compiles = 1
    watch.compiled()
    calls.wait("quiet")
    compiler.compiles = 2
    calls.wait("quiet", 2)


def test_a_process_with_a_compile_under_way_is_not_quiet(
    watch: ActivityWatch, compiler: Compiler, calls: Calls
) -> None:
    compiler.compiles, compiler.busy = 1, True
    watch.compiled()
    time.sleep(1)
    assert calls.moments == []
    compiler.busy = False
    calls.wait("quiet")


def test_no_listener_is_called_before_the_first_compile(watch: ActivityWatch, calls: Calls) -> None:
    watch.start()
    time.sleep(1)
    assert calls.moments == []
    assert watch.flush(30) and calls.moments == ["exit"]


def test_a_watch_that_was_never_started_has_nothing_to_do_at_exit(watch: ActivityWatch, calls: Calls) -> None:
    assert watch.flush(30) is False and calls.moments == []


def test_an_exit_waits_no_longer_than_its_timeout(watch: ActivityWatch) -> None:
    watch.listeners.insert(0, lambda *_: time.sleep(30))
    watch.start()
    begin = time.monotonic()
    assert not watch.flush(0.2)
    assert not watch.flush(0.2), (
        "Python announces its end twice: the second announcement makes nobody wait again"
    )
    assert time.monotonic() - begin < 10


def test_a_listener_that_fails_does_not_keep_other_listeners_from_their_work(
    watch: ActivityWatch, calls: Calls
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("odd")

    watch.listeners.insert(0, fail)
    watch.start()
    assert watch.flush(30) and watch.flush(30)
    assert calls.moments == ["exit", "exit"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_watch_sees_the_exit_of_children_of_multiprocessing(method: str, tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, os\n"
        "from cachesvc_client.hooks.activity import ActivityWatch\n"
        "watch = ActivityWatch(lambda: None, busy=lambda: False)\n"
        "watch.listeners.append(lambda moment, _: print(moment, os.getpid(), flush=True))\n"
        "watch.at_exit()\n"
        "def work():\n"
        "    watch.begin_again()\n"
        "    watch.start()\n"
        "    print('child', os.getpid(), flush=True)\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=work)\n"
        "    process.start(); process.join()\n"
    )
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    pid = lines[0].removeprefix("child ")
    assert lines[1:] and set(lines[1:]) == {f"exit {pid}"}, lines
