"""Test the pause of the garbage collector: what it changes, when it ends, and what it never does."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cachesvc_client.process import gc_pause
from cachesvc_client.process.gc_pause import GcPause

NUMBERS = (611, 7, 9)


@pytest.fixture(autouse=True)
def numbers() -> Iterator[None]:
    """Set thresholds that no other code uses."""
    before, enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(*NUMBERS)
    yield
    gc.set_threshold(*before)
    (gc.enable if enabled else gc.disable)()


class Callbacks:
    """Behaves as ``torch._dynamo.callback`` does."""

    def __init__(self) -> None:
        self.begin: list[Callable[[Any], None]] = []
        self.end: list[Callable[[Any], None]] = []
        self.register_start_callback, self.register_end_callback = self.begin.append, self.end.append

    def begins(self) -> None:
        for call in self.begin:
            call(None)

    def ends(self) -> None:
        for call in self.end:
            call(None)


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> tuple[GcPause, Callbacks]:
    monkeypatch.setattr(gc_pause, "QUIET", 0.3)
    pause, callbacks = GcPause(), Callbacks()
    pause._hook_callbacks(SimpleNamespace(callback_handler=callbacks))  # type: ignore[arg-type]
    return pause, callbacks


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def test_only_the_oldest_generation_is_paused_during_a_compile(dynamo: tuple[GcPause, Callbacks]) -> None:
    pause, callbacks = dynamo
    pause.allow()
    assert gc.get_threshold() == NUMBERS, "nothing compiles"
    for _ in range(2):
        callbacks.begins()
        assert gc.get_threshold()[:2] == NUMBERS[:2] and gc.get_threshold()[2] > 1e6
        time.sleep(2 * gc_pause.QUIET)
        assert pause.active, "a compile that takes longer than the quiet period is one compile"
        callbacks.ends()
        assert until(lambda: gc.get_threshold() == NUMBERS)
    assert pause.seconds >= 4 * gc_pause.QUIET


def test_the_pause_lasts_from_the_import_of_dynamo_to_the_first_compile(
    dynamo: tuple[GcPause, Callbacks],
) -> None:
    pause, callbacks = dynamo
    pause.allow()
    pause._begin_compile()  # as the hook of the import does
    pause._end_compile(gc_pause.FIRST_COMPILE)
    time.sleep(3 * gc_pause.QUIET)
    assert pause.active, "the service builds its model"
    callbacks.begins()
    callbacks.ends()
    assert until(lambda: not pause.active), "what follows the first compile is as short as ever"


def test_the_pause_ends_if_dynamo_is_imported_and_nothing_compiles(
    dynamo: tuple[GcPause, Callbacks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_pause, "FIRST_COMPILE", 0.6)
    pause, _ = dynamo
    pause.allow()
    pause._begin_compile()
    pause._end_compile(gc_pause.FIRST_COMPILE)
    assert until(lambda: gc.get_threshold() == NUMBERS)


def test_nothing_is_paused_without_a_restore_and_a_late_restore_counts(
    dynamo: tuple[GcPause, Callbacks],
) -> None:
    pause, callbacks = dynamo
    callbacks.begins()
    assert gc.get_threshold() == NUMBERS
    pause.allow()
    assert pause.active and gc.get_threshold() != NUMBERS
    callbacks.ends()
    assert until(lambda: not pause.active)


def test_the_pause_ends_whatever_happens_to_the_callbacks(
    dynamo: tuple[GcPause, Callbacks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``torch._dynamo.reset`` removes them: then no compile ever ends."""
    monkeypatch.setattr(gc_pause, "MOST", 0.4)
    pause, callbacks = dynamo
    pause.allow()
    callbacks.begins()
    assert pause.active and until(lambda: gc.get_threshold() == NUMBERS)
    callbacks.begins()
    assert not pause.active, "the process has used its whole pause"


def test_thresholds_that_other_code_sets_meanwhile_stay(dynamo: tuple[GcPause, Callbacks]) -> None:
    pause, callbacks = dynamo
    pause.allow()
    gc.disable()
    callbacks.begins()
    gc.set_threshold(1000, 20, 30)
    callbacks.ends()
    assert until(lambda: not pause.active)
    assert gc.get_threshold() == (1000, 20, 30) and not gc.isenabled()


def test_a_forked_child_collects(dynamo: tuple[GcPause, Callbacks]) -> None:
    pause, callbacks = dynamo
    pause.install_hooks()
    pause.allow()
    callbacks.begins()
    assert pause.active
    child = os.fork()
    if not child:
        os._exit(0 if gc.get_threshold() == NUMBERS and not pause.active else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pause.active
    callbacks.ends()
    assert until(lambda: not pause.active)
