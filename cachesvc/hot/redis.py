"""Keep hints that replicas share, in Redis."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import cachesvc
from cachesvc_client.wire.errors import InvalidRequest, Unavailable

from .store import MAX_HOLD_SECONDS, MAX_HOLDERS, MAX_SECONDS, OnWake

TIMEOUT_SECONDS = 0.5
"""Seconds to wait for a connection, and for each answer."""
PAUSE_SECONDS = 1.0
"""Seconds without a call to Redis after a failure, so that not every request waits for it."""
MAX_BYTES = 4 << 20
"""Bytes of a value, at most: to fetch a larger one would need longer than to make it anew."""

_WAKE = "wake"
"""The channel of wake-ups."""
_LISTEN_SECONDS = 1.0
"""Seconds between two looks of a listener at whether it is to stop."""

_log = logging.getLogger("cachesvc.hot")
T = TypeVar("T")


class RedisHot:
    """A :class:`~cachesvc.hot.store.Hot` in the Redis (or what speaks its protocol) at ``url``.

    Keys have this package's version: replicas of two versions, side by side in a rolling upgrade, do not
    read each other's hints. A client that can write into this Redis makes the registry slower and nothing
    else. The first call opens a connection. ``clock``: seconds, monotonic.

    Raises ``InvalidRequest`` for a URL that cannot be read.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paused_until = float("-inf")
        self._failing = False
        self._lock = threading.Lock()
        self._listeners: list[_Listener] = []
        self._prefix = f"cachesvc/{cachesvc.__version__}/"
        try:
            # Tried twice, as a connection that lay idle may have been closed by the other side.
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=TIMEOUT_SECONDS,
                socket_connect_timeout=TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 1),
            )
        except ValueError as error:
            raise InvalidRequest(
                f"redis: {error}", "redis://:password@host:6379/0, or rediss://… for TLS"
            ) from None

    def get(self, key: str) -> bytes | None:
        value: Any = self._try(lambda: self._redis.get(self._prefix + key), None)
        return value if isinstance(value, bytes) else None

    def peek(self, key: str) -> bytes | None:  # noqa: ARG002
        return None

    def put(self, key: str, value: bytes, seconds: float = MAX_SECONDS) -> None:
        if len(value) <= MAX_BYTES:
            self._try(lambda: self._redis.set(self._prefix + key, value, px=_milliseconds(seconds)), None)
        else:
            self.drop(key)

    def drop(self, key: str) -> None:
        self._try(lambda: self._redis.delete(self._prefix + key), None)

    def count(self, key: str, seconds: float = MAX_SECONDS) -> int:
        def step() -> int:
            with self._redis.pipeline(transaction=True) as both:
                both.set(self._prefix + key, 0, px=_milliseconds(seconds), nx=True)
                both.incr(self._prefix + key)
                return int(both.execute()[1])

        return self._try(step, 0)

    def hold(self, key: str, holder: str, value: bytes, seconds: float) -> None:
        names, life = self._prefix + key, int(MAX_HOLD_SECONDS * 1000)

        def step() -> None:
            with self._redis.pipeline(transaction=True) as both:
                both.set(f"{names}/{holder}", value, px=_milliseconds(seconds, MAX_HOLD_SECONDS))
                both.sadd(names, holder)
                both.pexpire(names, life)
                both.scard(names)
                number = int(both.execute()[3])
            if number > MAX_HOLDERS:  # those whose value has ended are forgotten by `holders`
                self._redis.spop(names, number - MAX_HOLDERS)

        self._try(step, None)

    def holders(self, key: str) -> dict[str, bytes]:
        names = self._prefix + key

        def step() -> dict[str, bytes]:
            members: Any = self._redis.smembers(names)
            known = [member.decode("utf-8", "replace") for member in members][:MAX_HOLDERS]
            values: Any = self._redis.mget([f"{names}/{holder}" for holder in known]) if known else []
            rows = dict(zip(known, values, strict=True))
            ended = [holder for holder, value in rows.items() if value is None]
            if ended:
                self._redis.srem(names, *ended)
            return {holder: value for holder, value in rows.items() if value is not None}

        return self._try(step, {})

    def release(self, key: str, holder: str) -> None:
        names = self._prefix + key

        def step() -> None:
            with self._redis.pipeline(transaction=True) as both:
                both.delete(f"{names}/{holder}")
                both.srem(names, holder)
                both.execute()

        self._try(step, None)

    def wake(self, key: str) -> None:
        self._try(lambda: self._redis.publish(self._prefix + _WAKE, key), 0)

    def listen(self, on_wake: OnWake) -> Callable[[], None]:
        listener = _Listener(self._redis, self._prefix + _WAKE, on_wake)
        with self._lock:
            self._listeners.append(listener)
        listener.start()
        return listener.stop

    def check(self) -> None:
        # What hints need and a PING does not: two keys at once, a write, a channel.
        one, other = f"{self._prefix}check/1", f"{self._prefix}check/2"
        try:
            self._redis.mget([one, other])
            self._redis.set(one, b"", px=1)
            self._redis.publish(one, b"")
        except redis.RedisError as error:
            raise Unavailable(f"Redis cannot be used: {_line(error)}", _hint(error)) from None

    def close(self) -> None:
        with self._lock:
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.stop()
        self._redis.close()

    def _try(self, call: Callable[[], T], otherwise: T) -> T:
        if self._clock() < self._paused_until:
            return otherwise
        try:
            answer = call()
        except (redis.RedisError, ValueError) as error:
            self._record_failure(error)
            return otherwise
        if self._failing:
            self._record_recovery()
        return answer

    def _record_failure(self, error: Exception) -> None:
        with self._lock:
            was_failing, self._failing = self._failing, True
            self._paused_until = self._clock() + PAUSE_SECONDS
        if not was_failing:
            _log.warning("Redis cannot be used, the index answers instead: %s", _line(error))

    def _record_recovery(self) -> None:
        with self._lock:
            was_failing, self._failing = self._failing, False
        if was_failing:
            _log.info("Redis can be used again")


class _Listener(threading.Thread):
    """Listens on a connection of its own, and connects again until it is stopped."""

    def __init__(self, client: Any, channel: str, on_wake: OnWake) -> None:
        super().__init__(name="cachesvc-listener", daemon=True)
        self._redis, self._channel, self._on_wake = client, channel, on_wake
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._redis.pubsub() as wakes:
                    wakes.subscribe(self._channel)
                    self._listen(wakes)
            except (redis.RedisError, ValueError, OSError) as error:
                _log.debug("not listening: %s", _line(error))
                self._stopped.wait(PAUSE_SECONDS)

    def stop(self) -> None:
        self._stopped.set()

    def _listen(self, wakes: Any) -> None:
        while not self._stopped.is_set():
            message = wakes.get_message(timeout=_LISTEN_SECONDS)
            if message is None or self._stopped.is_set():
                continue
            if message["type"] == "subscribe":
                self._on_wake(None)
            elif message["type"] == "message":
                self._on_wake(message["data"].decode("utf-8", "replace"))


def _milliseconds(seconds: float, most: float = MAX_SECONDS) -> int:
    return max(1, int(min(seconds, most) * 1000))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


_KINDS = {
    "CROSSSLOT": "a Redis Cluster",
    "MOVED": "a Redis Cluster",
    "CLUSTERDOWN": "a Redis Cluster",
    "Hash slot": "a Redis Cluster",
    "read only replica": "a replica",
    "READONLY": "a replica",
    "unknown command": "a Sentinel",
}
"""A part of an error -> what the setting names in the place of a server."""


def _hint(error: Exception) -> str:
    if isinstance(error, redis.exceptions.NoPermissionError):
        return "the user of the setting redis needs the rights ~cachesvc/* &cachesvc/* +@all -@dangerous"
    if isinstance(error, redis.AuthenticationError):
        return "the setting redis holds user and password: redis://user:password@host:6379/0"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "for a private authority the setting redis ends in ?ssl_ca_certs=/path/to/ca.pem"
    kind = next((kind for part, kind in _KINDS.items() if part in f"{type(error).__name__} {error}"), "")
    if kind:
        return f"the setting redis names {kind}: name one primary server, or a proxy in front of it"
    return "check the setting redis; until it answers, replicas are slower and nothing else"
