from __future__ import annotations

import threading
import tracemalloc

import pytest
from hot_clock import Clock

from cachesvc.hot.memory import MemoryHot
from tests.hot import contract


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_the_memory_store_keeps_the_contract(check) -> None:
    clock = Clock()
    check(MemoryHot(clock=clock), clock.advance)


def test_the_memory_store_is_bounded_and_forgets_the_oldest_first() -> None:
    hot = MemoryHot(max_bytes=10_000, clock=Clock())
    for index in range(50):
        hot.put(f"key-{index:02}", b"x" * 482)
    assert [index for index in range(50) if hot.get(f"key-{index:02}")] == list(range(40, 50))
    hot.put("huge", b"x" * 20_000)
    assert hot.get("huge") is None
    assert hot.get("key-49") is not None


def test_the_memory_store_serves_many_threads() -> None:
    hot = MemoryHot(max_bytes=20_000, clock=Clock())
    wrong: list[bytes] = []

    def work(number: int) -> None:
        for index in range(2000):
            key = f"k{index % 17}"
            hot.put(key, key.encode() * 50)
            value = hot.get(f"k{(index + number) % 17}")
            if value is not None and value != f"k{(index + number) % 17}".encode() * 50:
                wrong.append(value)
            hot.drop(f"k{number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for index in range(17):
        hot.drop(f"k{index}")
    assert hot._bytes == 0


@pytest.mark.parametrize("how", ["count", "hold"])
def test_short_hints_take_no_more_memory_than_long_ones(how: str) -> None:
    """A stranger makes one with each login in vain: what stands beside key and value counts too."""
    hot = MemoryHot(1 << 20)
    keys = [f"logins/token/{number:064x}" for number in range(60_000)]
    tracemalloc.start()
    try:
        for key in keys:
            hot.count(key, 5.0) if how == "count" else hot.hold(key, key[-8:], b"x", 60.0)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < (1 << 20 if how == "count" else 20 << 20), taken
