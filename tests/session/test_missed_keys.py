"""Test the bounds of questions by key: what is asked once, when a process pauses or ends its questions, and
when a revision may take another folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachesvc_client.hooks import counters
from cachesvc_client.node.installed import RestoreResult
from cachesvc_client.process.process import Process
from cachesvc_client.restore.on_demand import Fetched
from cachesvc_client.session import missed_keys
from cachesvc_client.session.missed_keys import MissedKeys
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Unavailable


class Registry:
    """Stands for what asks a registry: it has nothing, and notes what it was asked for."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.asked: list[str] = []
        self._act = act

    def has_names(self) -> bool:
        return True

    def fetch_keys(self, keys: list[str], *_: object) -> Fetched:
        self.asked += keys
        self._act()
        return Fetched([], [])


def keys_of(registry: Registry, partial: bool = False, deadline: float = 5.0) -> tuple[MissedKeys, Any]:
    session: Any = SimpleNamespace(
        ready=True,
        restoring=SimpleNamespace(partial=partial, on_demand=registry, note_late=lambda: None),
        config=SimpleNamespace(deadline=deadline),
        result=RestoreResult(),
        label="team/x",
    )
    return MissedKeys(Process(), [session]), session


def test_a_key_that_nobody_has_is_asked_for_once() -> None:
    registry = Registry()
    keys, _ = keys_of(registry)
    assert [keys.key_missed(key) for key in ("one", "one", "two", "one")] == [False] * 4
    assert registry.asked == ["one", "two"]


def test_a_process_that_left_nothing_out_pauses_and_asks_again() -> None:
    registry = Registry()
    keys, _ = keys_of(registry)
    for number in range(100):
        keys.key_missed(f"key-{number}")
    assert len(registry.asked) == missed_keys._MISSES_BEFORE_PAUSE
    keys._paused_until = 0.0
    keys.key_missed("later")
    keys.key_missed("not before the next pause is over")
    assert len(registry.asked) == missed_keys._MISSES_BEFORE_PAUSE + 1


def test_a_process_that_left_revisions_out_ends_its_questions() -> None:
    registry = Registry()
    keys, _ = keys_of(registry, partial=True)
    for number in range(100):
        keys.key_missed(f"key-{number}")
    assert len(registry.asked) == missed_keys._MOST_MISSES and keys._over


def test_questions_that_bring_nothing_take_no_longer_than_one_deadline() -> None:
    registry = Registry(lambda: time.sleep(0.3))
    keys, _ = keys_of(registry, deadline=1.0)
    for number in range(10):
        keys.key_missed(f"key-{number}")
    assert 1 <= len(registry.asked) <= 4 and keys._over


def test_a_failure_and_a_late_answer_end_the_questions_and_are_told() -> None:
    def fail() -> None:
        raise Unavailable("http://r: no answer")

    late = threading.Event()
    for registry, words in ((Registry(fail), "no answer"), (Registry(late.wait), "within the deadline")):
        keys, session = keys_of(registry, deadline=0.5)
        assert not keys.key_missed("one") and not keys.key_missed("two")
        assert registry.asked == ["one"]
        [problem] = session.result.problems
        assert words in problem
    late.set()


def test_a_rank_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    keys, _ = keys_of(registry)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not keys.key_missed("one") and registry.asked == []


def test_a_compile_that_has_waited_for_its_deadline_asks_for_nothing() -> None:
    registry = Registry()
    keys, _ = keys_of(registry, deadline=5.0)
    keys._process._depth.inside, keys._process._depth.waited = True, 4.9
    assert not keys.key_missed("one") and registry.asked == []
    keys._process._depth.waited = 1.0
    keys.key_missed("one")
    assert registry.asked == ["one"] and keys._process._depth.waited > 1.0


def test_a_compile_that_waits_at_a_look_up_writes_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    process._depth.inside, process._depth.waited, process._compiling = True, 0.0, 1
    assert process._writes_files()
    with process.at_look_up():
        assert not process._writes_files()
        process._compiling = 2  # another thread compiles
        assert process._writes_files()
        process._compiling = 1
        monkeypatch.setattr(counters, "_running", {1: 1})  # the look-up is inside another code generation
        assert process._writes_files()
    assert process._writes_files()


def test_a_process_whose_program_chose_a_folder_of_its_own_does_not_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
    for name in variables:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    process = Process()
    process.folders.settle(lambda: tmp_path / "private")
    assert process.folders.private and process.folders.in_use()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "own"))
    assert not process.folders.in_use()
    staged: Any = None
    assert process.join(Digest.of(b"scope"), staged) is None
