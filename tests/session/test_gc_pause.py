"""The collector's hold: what it changes, when it lets go, and what it never does."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cachesvc_client.session import gc_pause
from cachesvc_client.session.gc_pause import GcPause

NUMBERS = (611, 7, 9)


@pytest.fixture(autouse=True)
def numbers() -> Iterator[None]:
    """Numbers that nobody else has."""
    before, enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(*NUMBERS)
    yield
    gc.set_threshold(*before)
    (gc.enable if enabled else gc.disable)()


class Callbacks:
    """As ``torch._dynamo.callback`` keeps them."""

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
    made, callbacks = GcPause(), Callbacks()
    made._hook_callbacks(SimpleNamespace(callback_handler=callbacks))  # type: ignore[arg-type]
    return made, callbacks


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def test_the_oldest_wait_while_it_compiles_and_the_young_do_not(dynamo: tuple[GcPause, Callbacks]) -> None:
    pause, callbacks = dynamo
    pause.allow()
    assert gc.get_threshold() == NUMBERS, "nothing compiles"
    for _ in range(2):
        callbacks.begins()
        assert gc.get_threshold()[:2] == NUMBERS[:2] and gc.get_threshold()[2] > 1e6
        time.sleep(2 * gc_pause.QUIET)
        assert pause.active, "a compile that takes longer than the quiet is one all the same"
        callbacks.ends()
        assert until(lambda: gc.get_threshold() == NUMBERS)
    assert pause.seconds >= 4 * gc_pause.QUIET


def test_nothing_restored_nothing_held_and_a_late_restore_counts(dynamo: tuple[GcPause, Callbacks]) -> None:
    pause, callbacks = dynamo
    callbacks.begins()
    assert gc.get_threshold() == NUMBERS
    pause.allow()
    assert pause.active and gc.get_threshold() != NUMBERS
    callbacks.ends()
    assert until(lambda: not pause.active)


def test_it_ends_whatever_becomes_of_the_callbacks(
    dynamo: tuple[GcPause, Callbacks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``torch._dynamo.reset`` takes them off: then no compile ever ends."""
    monkeypatch.setattr(gc_pause, "MOST", 0.4)
    pause, callbacks = dynamo
    pause.allow()
    callbacks.begins()
    assert pause.active and until(lambda: gc.get_threshold() == NUMBERS)
    callbacks.begins()
    assert not pause.active, "all that a process may is used up"


def test_what_others_set_meanwhile_stays(dynamo: tuple[GcPause, Callbacks]) -> None:
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
