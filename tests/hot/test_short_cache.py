"""Test the short memory in front of a store that replicas share."""

from __future__ import annotations

import pytest
from hot_clock import Clock

from cachesvc.hot.memory import MemoryHot
from cachesvc.hot.short_cache import _MAX_BYTES, FRESH_SECONDS, ShortCache
from tests.hot import contract


class CountingHot(MemoryHot):
    """Counts its reads."""

    reads = 0

    def get(self, key: str) -> bytes | None:
        self.reads += 1
        return super().get(key)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shared(clock: Clock) -> CountingHot:
    return CountingHot(clock=clock)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_the_short_cache_keeps_the_contract(check, shared: CountingHot, clock: Clock) -> None:
    check(ShortCache(shared, clock), clock.advance)


def test_the_store_is_read_once_in_a_while_whatever_it_answers(shared: CountingHot, clock: Clock) -> None:
    hot = ShortCache(shared, clock)
    shared.put("there", b"1")
    for key, value in (("there", b"1"), ("absent", None)):
        before = shared.reads
        assert hot.peek(key) is None
        assert [hot.get(key) for _ in range(5)] == [value] * 5
        assert hot.peek(key) == (value or b"")
        assert shared.reads == before + 1


def test_one_thread_reads_again_while_the_others_go_on(shared: CountingHot, clock: Clock) -> None:
    hot = ShortCache(shared, clock)
    hot.put("a", b"1")
    clock.advance(FRESH_SECONDS)
    assert [hot.peek("a") for _ in range(4)] == [None, b"1", b"1", b"1"]
    assert hot.get("a") == b"1" and shared.reads == 1
    assert hot.peek("a") == b"1"
    clock.advance(FRESH_SECONDS)
    hot.peek("a")  # This thread must read the store, and does not come back.
    clock.advance(FRESH_SECONDS)
    assert hot.peek("a") is None


def test_a_change_by_another_replica_is_visible_in_a_moment(shared: CountingHot, clock: Clock) -> None:
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


def test_a_woken_reader_sees_the_value_of_another_replica(shared: CountingHot, clock: Clock) -> None:
    here, there = ShortCache(shared, clock), ShortCache(shared, clock)
    answers: list[tuple[str | None, bytes | None]] = []
    stop = there.listen(lambda key: answers.append((key, there.get("a"))))
    here.put("a", b"1")
    assert there.get("a") == b"1"
    here.put("a", b"2")
    assert there.get("a") == b"1"  # The reader waits a moment.
    here.wake("claim")
    assert answers == [("claim", b"2")]
    stop()
    here.wake("again")
    assert len(answers) == 1


def test_a_slow_answer_does_not_hide_a_value_that_was_put_meanwhile(clock: Clock) -> None:
    class Slow(MemoryHot):
        def get(self, key: str) -> bytes | None:
            value = super().get(key)
            hot.put("a", b"new")
            return value

    shared = Slow(clock=clock)
    hot = ShortCache(shared, clock)
    shared.put("a", b"old")
    assert hot.get("a") == b"old"
    assert hot.peek("a") == b"new"


def test_memory_is_bounded(shared: CountingHot, clock: Clock) -> None:
    hot = ShortCache(shared, clock)
    for number in range(40):
        hot.put(str(number), b"x" * (_MAX_BYTES // 20))
        entries = sum(hot.peek(str(past)) is not None for past in range(number + 1))
        assert entries <= 20
    assert hot.peek("39") is not None
