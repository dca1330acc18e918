"""Check the contract of `cachesvc.hot.store`, for every hot store. ``pass_time(seconds)`` moves its clock."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from cachesvc.hot.store import MAX_HOLD_SECONDS, MAX_HOLDERS, MAX_SECONDS, Hot

PassTime = Callable[[float], None]
WakeQueue = queue.SimpleQueue[str | None]


def remembers(hot: Hot, _pass_time: PassTime) -> None:
    """Checks that ``get`` returns what was put last, whatever the bytes."""
    _true(hot.get("remembers/none") is None)
    for value in (b"", b"one", bytes(range(256)), b"x" * 100_000):
        hot.put("remembers/a", value)
        hot.put("remembers/b", b"other")
        _true(hot.get("remembers/a") == value)
    _true(hot.get("remembers/b") == b"other")


def peeks(hot: Hot, _pass_time: PassTime) -> None:
    """Checks that ``peek`` returns what ``get`` returns, or nothing."""
    for value in (b"", b"1", b"2"):
        if value:
            hot.put("peek", value)
        _true(hot.peek("peek") in (None, hot.get("peek") or b""))
        _true(hot.peek("peek") in (None, hot.get("peek") or b""))
    hot.drop("peek")
    _true(hot.peek("peek") in (None, b""))


def drops(hot: Hot, _pass_time: PassTime) -> None:
    """Checks that ``drop`` removes one key and no other, and that an absent key is no error."""
    hot.put("drops/a", b"1")
    hot.put("drops/b", b"2")
    hot.drop("drops/a")
    hot.drop("drops/never")
    _true((hot.get("drops/a"), hot.get("drops/b")) == (None, b"2"))


def forgets(hot: Hot, pass_time: PassTime) -> None:
    """Checks that a value ends after its seconds, at most ``MAX_SECONDS``, and that a new value begins
    anew."""
    hot.put("forgets/short", b"1", 1.0)
    hot.put("forgets/long", b"2", 3600.0)
    hot.put("forgets/again", b"3")
    pass_time(1.5)
    _true((hot.get("forgets/short"), hot.get("forgets/long")) == (None, b"2"))
    hot.put("forgets/again", b"4")
    pass_time(MAX_SECONDS - 1.0)
    _true((hot.get("forgets/long"), hot.get("forgets/again")) == (None, b"4"))


def counts(hot: Hot, pass_time: PassTime) -> None:
    """Checks that ``count`` counts from one, by key, loses no call among threads, and begins anew after its
    span."""
    _true([hot.count("counts/a", 2.0) for _ in range(3)] == [1, 2, 3])
    _true(hot.count("counts/b") == 1)
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: hot.count("counts/many"), range(200)))
    _true(sorted(seen) == list(range(1, 201)))
    pass_time(1.0)
    hot.count("counts/a", 2.0)  # does not begin the span again
    pass_time(1.5)
    _true(hot.count("counts/a", 2.0) == 1)


def holds(hot: Hot, pass_time: PassTime) -> None:
    """Checks that each holder of a key is known with its last value until it lets go or its seconds end, that
    their number is bounded."""
    _true(hot.holders("holds/none") == {})
    hot.hold("holds/a", "one", b"1", 60.0)
    hot.hold("holds/a", "two", bytes(range(256)), 3600.0)
    hot.hold("holds/b", "one", b"", 60.0)
    hot.hold("holds/a", "one", b"again", 60.0)
    _true(hot.holders("holds/a") == {"one": b"again", "two": bytes(range(256))})
    hot.release("holds/a", "nobody")
    hot.release("holds/b", "one")
    _true(hot.holders("holds/b") == {})
    pass_time(61.0)
    _true(set(hot.holders("holds/a")) == {"two"})
    pass_time(MAX_HOLD_SECONDS - 60.0)
    _true(hot.holders("holds/a") == {})
    for number in range(MAX_HOLDERS + 5):
        hot.hold("holds/many", f"{number}", b"x", 60.0)
    _true(len(hot.holders("holds/many")) == MAX_HOLDERS)


def wakes(hot: Hot, _pass_time: PassTime) -> None:
    """Checks that a listener gets the wake-ups in order, none after it stopped, and none from before it
    began."""
    first, second = WakeQueue(), WakeQueue()
    hot.wake("wakes/before")
    stop, stop_second = hot.listen(first.put), hot.listen(second.put)
    for wake_ups in (first, second):
        _ready(hot, wake_ups)
    hot.wake("wakes/begin")
    for wake_ups in (first, second):
        _true("wakes/before" not in _until(wake_ups, "wakes/begin"))
    for number in range(20):
        hot.wake(f"wakes/{number}")
    for wake_ups in (first, second):
        _true([wake_ups.get(timeout=5) for _ in range(20)] == [f"wakes/{number}" for number in range(20)])
    stop()
    hot.wake("wakes/end")
    _until(second, "wakes/end")
    stop_second()
    _true(first.empty())


def _ready(hot: Hot, wake_ups: WakeQueue) -> None:
    for _ in range(50):
        hot.wake("wakes/probe")
        with suppress(queue.Empty):
            _until(wake_ups, "wakes/probe", 0.1)
            return
    _true(False)


def _until(wake_ups: WakeQueue, last: str, seconds: float = 5.0) -> list[str | None]:
    """Returns the wake-ups up to ``last``."""
    keys: list[str | None] = []
    while not keys or keys[-1] != last:
        keys.append(wake_ups.get(timeout=seconds))
    return keys


def is_usable(hot: Hot, _pass_time: PassTime) -> None:
    """Checks that ``check`` passes."""
    hot.check()


CHECKS: tuple[Callable[[Hot, PassTime], None], ...] = (
    is_usable,
    remembers,
    peeks,
    drops,
    forgets,
    counts,
    holds,
    wakes,
)


def _true(holds: bool) -> None:
    # No assert statement: an operator's interpreter may run with -O.
    if not holds:
        raise AssertionError("the store does not keep the contract")
