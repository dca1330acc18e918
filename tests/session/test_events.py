"""Test the events of a process: listeners that are made late, and those that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from cachesvc_client.process.events import Events, Listener


class Noting(Listener):
    def __init__(self) -> None:
        self.moments: list[str] = []

    def key_missed(self, key: str) -> bool:
        self.moments.append(key)
        return True

    def paused(self, moment: str, _deadline: float) -> None:
        self.moments.append(moment)


class Failing(Listener):
    def paused(self, moment: str, _deadline: float) -> None:
        raise RuntimeError(moment)


def test_the_error_of_a_listener_keeps_no_other_from_its_work() -> None:
    events, noting = Events(), Noting()
    events.subscribe(Failing())
    events.subscribe(noting)
    events.paused("quiet", time.monotonic())
    assert noting.moments == ["quiet"]


def test_no_event_passes_by_listeners_that_are_being_made() -> None:
    events, noting, begun = Events(), Noting(), threading.Event()

    def make() -> Sequence[Listener]:
        begun.set()
        time.sleep(0.3)
        return [noting]

    events.subscribe_late(make)
    thread = threading.Thread(target=events.paused, args=("quiet", time.monotonic()))
    thread.start()
    assert begun.wait(10) and events.key_missed("key")
    thread.join()
    assert sorted(noting.moments) == ["key", "quiet"]


def test_listeners_that_cannot_be_made_break_no_compile() -> None:
    events = Events()
    events.subscribe_late(lambda: [][0])
    assert events.key_missed("key") is False
    events.paused("exit", time.monotonic())
