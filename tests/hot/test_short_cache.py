"""What is remembered in front of a store that replicas share."""

from __future__ import annotations

import pytest
from hot_clock import Clock

from cachesvc.hot import contract
from cachesvc.hot.memory import MemoryHot
from cachesvc.hot.short_cache import _MAX_BYTES, FRESH_SECONDS, ShortCache


class Asked(MemoryHot):
    """Counts what it is asked for."""

    asked = 0

    def get(self, key: str) -> bytes | None:
        self.asked += 1
        return super().get(key)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shared(clock: Clock) -> Asked:
    return Asked(clock=clock)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_the_short_cache_keeps_the_contract(check, shared: Asked, clock: Clock) -> None:
    check(ShortCache(shared, clock), clock.advance)


def test_the_store_is_asked_once_in_a_while_whatever_it_answers(shared: Asked, clock: Clock) -> None:
    hot = ShortCache(shared, clock)
    shared.put("there", b"1")
    for key, value in (("there", b"1"), ("absent", None)):
        before = shared.asked
        assert hot.peek(key) is None
        assert [hot.get(key) for _ in range(5)] == [value] * 5
        assert hot.peek(key) == (value or b"")
        assert shared.asked == before + 1


def test_one_asks_again_while_the_others_go_on(shared: Asked, clock: Clock) -> None:
    hot = ShortCache(shared, clock)
    hot.put("a", b"1")
    clock.advance(FRESH_SECONDS)
    assert [hot.peek("a") for _ in range(4)] == [None, b"1", b"1", b"1"]
    assert hot.get("a") == b"1" and shared.asked == 1
    assert hot.peek("a") == b"1"
    clock.advance(FRESH_SECONDS)
    hot.peek("a")  # is told to ask, and does not come back
    clock.advance(FRESH_SECONDS)
    assert hot.peek("a") is None


def test_what_another_replica_does_is_seen_in_a_moment(shared: Asked, clock: Clock) -> None:
    here, there = ShortCache(shared, clock), ShortCache(shared, clock)
    here.put("a", b"1")
    assert there.get("a") == b"1"
    here.put("a", b"2")
    here.drop("b")
    assert here.peek("a") == b"2"
    clock.advance(2 * FRESH_SECONDS)
    assert there.peek("a") is None and there.get("a") == b"2"
    here.drop("a")
    assert here.peek("a") is None and here.get("a") is None
    clock.advance(2 * FRESH_SECONDS)
    assert there.peek("a") is None and there.get("a") is None


def test_who_is_woken_sees_what_another_replica_put(shared: Asked, clock: Clock) -> None:
    here, there = ShortCache(shared, clock), ShortCache(shared, clock)
    seen: list[tuple[str | None, bytes | None]] = []
    stop = there.listen(lambda key: seen.append((key, there.get("a"))))
    here.put("a", b"1")
    assert there.get("a") == b"1"
    here.put("a", b"2")
    assert there.get("a") == b"1"  # for a moment
    here.wake("claim")
    assert seen == [("claim", b"2")]
    stop()
    here.wake("again")
    assert len(seen) == 1


def test_an_answer_that_was_under_way_does_not_hide_what_was_put_meanwhile(clock: Clock) -> None:
    class Slow(MemoryHot):
        def get(self, key: str) -> bytes | None:
            found = super().get(key)
            hot.put("a", b"new")
            return found

    shared = Slow(clock=clock)
    hot = ShortCache(shared, clock)
    shared.put("a", b"old")
    assert hot.get("a") == b"old"
    assert hot.peek("a") == b"new"


def test_memory_is_bounded(shared: Asked, clock: Clock) -> None:
    hot = ShortCache(shared, clock)
    for number in range(40):
        hot.put(str(number), b"x" * (_MAX_BYTES // 20))
        held = sum(hot.peek(str(past)) is not None for past in range(number + 1))
        assert held <= 20
    assert hot.peek("39") is not None
