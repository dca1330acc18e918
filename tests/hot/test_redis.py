"""Test Redis in its normal state, while it is gone, and while it refuses."""

from __future__ import annotations

import contextlib
import socket

import pytest
import redis
from hot_clock import Clock

from cachesvc.hot.redis import MAX_BYTES, PAUSE_SECONDS, RedisHot
from cachesvc.hot.store import MAX_SECONDS
from cachesvc_client.wire.errors import InvalidRequest, Unavailable
from tests.hot import contract
from tests.services.process import free_port
from tests.services.redis import redis_server

pytestmark = pytest.mark.services


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_redis_keeps_the_contract(redis_url: str, check) -> None:
    server = redis.Redis.from_url(redis_url)
    server.flushall()

    def pass_time(seconds: float) -> None:
        """Shorten every time to live by this time, as Redis itself would."""
        for key in server.scan_iter():
            remaining = server.pttl(key) - int(seconds * 1000)
            assert server.pexpire(key, remaining) == 1

    check(RedisHot(redis_url), pass_time)


def test_redis_forgets_by_itself(redis_url: str) -> None:
    hot, server = RedisHot(redis_url), redis.Redis.from_url(redis_url)
    server.flushall()
    hot.put("put", b"1", 3600.0)
    hot.count("count", 3600.0)
    lives = [server.pttl(key) for key in server.scan_iter()]
    assert len(lives) == 2
    assert all(0 < life <= MAX_SECONDS * 1000 for life in lives)


def test_redis_keeps_neither_huge_values_nor_replaced_ones(redis_url: str) -> None:
    hot = RedisHot(redis_url)
    hot.put("huge", b"old")
    hot.put("huge", b"x" * (MAX_BYTES + 1))
    assert hot.get("huge") is None


def test_an_absent_redis_answers_nothing_and_is_used_again_later(caplog: pytest.LogCaptureFixture) -> None:
    clock, port = Clock(), free_port()
    hot = RedisHot(f"redis://127.0.0.1:{port}", clock)
    with caplog.at_level("INFO", "cachesvc.hot"):
        for _ in range(3):
            hot.put("a", b"1")
            assert (hot.get("a"), hot.count("n")) == (None, 0)
            hot.drop("a")
            clock.advance(PAUSE_SECONDS)
        with pytest.raises(Unavailable, match="slower and nothing else"):
            hot.check()
        with redis_server(port):
            assert hot.get("a") is None
            hot.put("a", b"2")
            assert (hot.get("a"), hot.count("n")) == (b"2", 1)
        assert hot.get("a") is None
        with redis_server(port):
            hot.put("a", b"3")
            assert hot.get("a") is None  # The client leaves Redis alone for a moment.
            clock.advance(PAUSE_SECONDS)
            hot.put("a", b"4")
            assert hot.get("a") == b"4"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2


def test_redis_restarted_between_two_requests_is_not_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    hot = RedisHot(f"redis://127.0.0.1:{port}", Clock())
    for _ in range(2):
        with redis_server(port):
            hot.put("a", b"1")
            assert hot.get("a") == b"1"
    assert caplog.records == []


def test_a_hanging_redis_costs_one_timeout_only() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        hot = RedisHot(f"redis://127.0.0.1:{silent.getsockname()[1]}", Clock())
        assert hot.get("a") is None
        silent.setblocking(False)
        attempts = 0
        for _ in range(50):
            hot.put("a", b"1")
            assert hot.get("a") is None
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                attempts += 1
    assert attempts <= 2


def test_a_redis_that_refuses_the_password_is_reported() -> None:
    with redis_server(None, "--requirepass", "right") as url:
        RedisHot(url.replace("redis://", "redis://:right@")).check()
        for wrong in (url, url.replace("redis://", "redis://:wrong@")):
            hot = RedisHot(wrong)
            with pytest.raises(Unavailable, match="user and password"):
                hot.check()
            assert hot.get("a") is None


@pytest.mark.parametrize("url", ["redis.example:6379", "http://x", "redis://x:port"])
def test_a_malformed_redis_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="redis://"):
        RedisHot(url)
