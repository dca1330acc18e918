"""The contract of :mod:`.store` as code, for every hot store. ``pass_time(seconds)`` moves its clock."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from .store import MAX_SECONDS, Hot

PassTime = Callable[[float], None]
Ears = queue.SimpleQueue[str | None]


def remembers(hot: Hot, _pass_time: PassTime) -> None:
    """What was put last is what comes back, whatever the bytes."""
    _true(hot.get("remembers/none") is None)
    for value in (b"", b"one", bytes(range(256)), b"x" * 100_000):
        hot.put("remembers/a", value)
        hot.put("remembers/b", b"other")
        _true(hot.get("remembers/a") == value)
    _true(hot.get("remembers/b") == b"other")


def peeks(hot: Hot, _pass_time: PassTime) -> None:
    """What is known without asking is what ``get`` answers, at each time."""
    for value in (b"", b"1", b"2"):
        if value:
            hot.put("peek", value)
        _true(hot.peek("peek") in (None, hot.get("peek") or b""))
        _true(hot.peek("peek") in (None, hot.get("peek") or b""))
    hot.drop("peek")
    _true(hot.peek("peek") in (None, b""))


def drops(hot: Hot, _pass_time: PassTime) -> None:
    """Dropping one key touches no other, and dropping nothing is fine."""
    hot.put("drops/a", b"1")
    hot.put("drops/b", b"2")
    hot.drop("drops/a")
    hot.drop("drops/never")
    _true((hot.get("drops/a"), hot.get("drops/b")) == (None, b"2"))


def forgets(hot: Hot, pass_time: PassTime) -> None:
    """No later than asked, and never later than ``MAX_SECONDS``; a new value lives from anew."""
    hot.put("forgets/short", b"1", 1.0)
    hot.put("forgets/long", b"2", 3600.0)
    hot.put("forgets/again", b"3")
    pass_time(1.5)
    _true((hot.get("forgets/short"), hot.get("forgets/long")) == (None, b"2"))
    hot.put("forgets/again", b"4")
    pass_time(MAX_SECONDS - 1.0)
    _true((hot.get("forgets/long"), hot.get("forgets/again")) == (None, b"4"))


def counts(hot: Hot, pass_time: PassTime) -> None:
    """From one, each key for itself, without losing a call among threads; anew after its span."""
    _true([hot.count("counts/a", 2.0) for _ in range(3)] == [1, 2, 3])
    _true(hot.count("counts/b") == 1)
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: hot.count("counts/many"), range(200)))
    _true(sorted(seen) == list(range(1, 201)))
    pass_time(1.0)
    hot.count("counts/a", 2.0)  # does not begin the span again
    pass_time(1.5)
    _true(hot.count("counts/a", 2.0) == 1)


def wakes(hot: Hot, _pass_time: PassTime) -> None:
    """Who listens hears what is woken, in order; who stopped does not, and nobody hears what came before."""
    first, second = Ears(), Ears()
    hot.wake("wakes/before")
    stop, stop_second = hot.listen(first.put), hot.listen(second.put)
    for ears in (first, second):
        _ready(hot, ears)
    hot.wake("wakes/begin")
    for ears in (first, second):
        _true("wakes/before" not in _until(ears, "wakes/begin"))
    for number in range(20):
        hot.wake(f"wakes/{number}")
    for ears in (first, second):
        _true([ears.get(timeout=5) for _ in range(20)] == [f"wakes/{number}" for number in range(20)])
    stop()
    hot.wake("wakes/end")
    _until(second, "wakes/end")
    stop_second()
    _true(first.empty())


def _ready(hot: Hot, ears: Ears) -> None:
    for _ in range(50):
        hot.wake("wakes/probe")
        with suppress(queue.Empty):
            _until(ears, "wakes/probe", 0.1)
            return
    _true(False)


def _until(ears: Ears, last: str, seconds: float = 5.0) -> list[str | None]:
    """What is heard up to ``last``."""
    heard: list[str | None] = []
    while not heard or heard[-1] != last:
        heard.append(ears.get(timeout=seconds))
    return heard


def is_usable(hot: Hot, _pass_time: PassTime) -> None:
    """``check`` passes."""
    hot.check()


CHECKS: tuple[Callable[[Hot, PassTime], None], ...] = (
    is_usable,
    remembers,
    peeks,
    drops,
    forgets,
    counts,
    wakes,
)


def _true(holds: bool) -> None:
    # No assert statement: an operator's interpreter may run with -O.
    if not holds:
        raise AssertionError("the store does not keep the contract")
