"""What somebody who may write into Redis gains: nothing but a slower registry."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import redis
from registry_inside import ROOT, Clock, Inside, inside
from registry_making import FINGERPRINT, Server, make, ok, refused

import cachesvc
from cachesvc.api.app import create_app
from cachesvc.domain.access import Role
from cachesvc.hot.memory import MemoryHot
from cachesvc.hot.short_cache import FRESH_SECONDS
from cachesvc.hot.store import MAX_SECONDS
from cachesvc.registry.access import tokens
from cachesvc.schema.access import TokenRequest
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import Unauthenticated

PREFIX = f"cachesvc/{cachesvc.__version__}/"
ADMIN = {"token": "t-forged", "label": "x", "role": int(Role.admin), "namespace": "*", "created": 0}


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[Server]:
    """A registry that shares hints in a Redis to which the test may write."""
    redis.Redis.from_url(redis_url).flushall()
    made = Server(tmp_path / "data", env={"CACHESVC_SERVER_REDIS": redis_url}).start()
    yield made
    assert made.stop() == 0


@pytest.fixture
def store(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


def forge(secret: str) -> tuple[str, bytes]:
    """Key and value of a hint that says that ``secret`` is an administrator's."""
    secret_hash = hashlib.sha256(secret.encode()).hexdigest()
    return f"token/{len(Role)}/{secret_hash}", json.dumps(ADMIN).encode()


def test_a_forged_token_opens_nothing(server: Server, store: redis.Redis) -> None:
    secret = "csv_" + secrets.token_urlsafe(32)
    key, value = forge(secret)
    for name in (key, "token/" + key.rpartition("/")[2]):
        store.set(PREFIX + name, value)
    api = server.api(secret)
    refused(api.http.get("/v1/whoami"), 401, "unauthenticated")
    refused(
        api.http.post("/v1/tokens", json={"label": "mine", "role": "admin", "namespace": "*"}),
        401,
        "unauthenticated",
    )
    signer = {"namespace": "*", "key": SigningKey.generate().public}
    refused(api.http.post("/v1/signers", json=signer), 401, "unauthenticated")


def test_a_reader_does_not_become_more_by_what_redis_holds_of_it(server: Server, store: redis.Redis) -> None:
    """Whatever the registry itself wrote for this token is changed to say *admin*."""
    reader = ok(
        server.api().http.post("/v1/tokens", json={"label": "r", "role": "read", "namespace": "team"})
    )
    api = server.api(reader["secret"])
    ok(api.http.get("/v1/whoami"))
    for name in store.scan_iter():
        value = store.get(name) or b""
        if b"role" in value:
            store.set(name, json.dumps({**json.loads(value), "role": int(Role.admin), "namespace": "*"}))
        assert reader["token"].encode() not in value
    time.sleep(2 * FRESH_SECONDS)
    refused(
        api.http.post("/v1/tokens", json={"label": "mine", "role": "admin", "namespace": "*"}),
        403,
        "forbidden",
    )
    assert ok(api.http.get("/v1/whoami"))["role"] == "read"


def test_a_revoked_token_is_not_kept_alive_by_redis(server: Server, store: redis.Redis) -> None:
    """All that Redis held while the token counted is put back again and again after it was revoked."""
    reader = ok(server.api().http.post("/v1/tokens", json={"label": "r", "role": "read", "namespace": "*"}))
    api = server.api(reader["secret"])
    ok(api.http.get("/v1/whoami"))
    with _frozen(store):
        ok(server.api().http.delete(f"/v1/tokens/{reader['token']}"))
        time.sleep(2 * FRESH_SECONDS)
        refused(api.http.get("/v1/whoami"), 401, "unauthenticated")


def test_quarantine_holds_while_redis_is_frozen(server: Server, store: redis.Redis) -> None:
    # A quarantine holds for the bytes, so each has its own.
    made, other = make(server.key, content=b"bad"), make(server.key, target="other", content=b"good")
    ok(server.api().publish(made))
    assert len(ok(server.api().resolve())["revisions"]) == 1
    with _frozen(store):
        ok(server.api().publish(other))
        ok(server.api().http.put(f"/v1/revisions/{made.revision}/quarantine", json={"why": "bad"}))
        time.sleep(MAX_SECONDS)
        # What is withheld is offered no more, and what is new is not hidden.
        assert [row["revision"] for row in ok(server.api().resolve())["revisions"]] == [other.revision]


def test_reports_are_not_stopped_by_a_counter_in_redis(server: Server, store: redis.Redis) -> None:
    made = make(server.key)
    ok(server.api().publish(made))
    [token] = [row["token"] for row in ok(server.api().http.get("/v1/tokens"))]
    span = int(time.time()) // 5
    for number in range(span, span + 12):
        store.set(f"{PREFIX}reports/{token}/{number}", 10**9)
    report = {
        "node": "0" * 32,
        "fingerprint": FINGERPRINT,
        "revisions": [{"revision": made.revision, "state": "hit", "saved": 1.0}],
    }
    ok(server.api().http.post("/v1/reports", json=report))


def test_words_of_the_wrong_kind_in_redis_stop_nothing(server: Server, store: redis.Redis) -> None:
    """Values that are no answer, under the keys that are asked for, and wake-ups that wake for nothing."""
    made = make(server.key)
    ok(server.api().publish(made))
    for name in ("eras", "era/team"):
        store.delete(PREFIX + name)
        store.rpush(PREFIX + name, b"a list")
    for _ in range(50):
        store.publish(PREFIX + "wake", b"\xff" * 100)
        [found] = ok(server.api().resolve())["revisions"]
        assert found["revision"] == made.revision
        assert ok(server.api().http.get("/v1/whoami"))["role"] == "admin"


class _frozen:
    """Keeps Redis as it is now, whatever the registry writes."""

    def __init__(self, store: redis.Redis) -> None:
        self._store = store
        self._kept = {name: store.get(name) for name in store.scan_iter()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.005):
            for name in self._store.scan_iter():
                if name not in self._kept:
                    self._store.delete(name)
            for name, value in self._kept.items():
                if value is not None:
                    self._store.set(name, value)


# Over the in-process store: one that two replicas share, as they share a Redis.


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Inside]:
    clock = Clock()
    with inside(tmp_path, SigningKey.generate(), clock) as made:
        shared = MemoryHot(clock=clock)
        registry = replace(made.registry, hot=shared, own=MemoryHot(clock=clock))
        yield Inside(registry, made.key, clock)


def test_a_forged_token_in_the_shared_store_opens_nothing(reg: Inside) -> None:
    key, value = forge("csv_forged")
    for name in (key, "token/" + key.rpartition("/")[2]):
        reg.registry.hot.put(name, value)
    assert tokens.cached_token(reg.registry, "csv_forged") is None
    with pytest.raises(Unauthenticated):
        tokens.authenticate(reg.registry, "csv_forged")


def test_an_administrator_who_was_revoked_elsewhere_does_nothing_more(reg: Inside) -> None:
    """Readers may be known for 5 s; whoever changes something is looked up each time."""
    made = tokens.create_token(reg.registry, None, TokenRequest("ops", "admin", "*"))
    elsewhere = replace(reg.registry, hot=MemoryHot(clock=reg.clock), own=MemoryHot(clock=reg.clock))

    async def asked(method: str, path: str, **more: object) -> int:
        transport = httpx.ASGITransport(create_app(reg.registry))
        headers = {"Authorization": f"Bearer {made.secret}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://r", headers=headers) as client:
            return (await client.request(method, path, **more)).status_code

    assert asyncio.run(asked("GET", "/v1/whoami")) == 200
    tokens.revoke_token(elsewhere, ROOT, made.token)
    signer = {"namespace": "*", "key": SigningKey.generate().public}
    assert asyncio.run(asked("POST", "/v1/signers", json=signer)) == 401
    assert (
        asyncio.run(asked("POST", "/v1/tokens", json={"label": "x", "role": "admin", "namespace": "*"}))
        == 401
    )
    assert asyncio.run(asked("DELETE", f"/v1/entries/sha256:{'0' * 64}")) == 401
    assert asyncio.run(asked("GET", "/v1/audit")) == 401
    reg.clock.now += MAX_SECONDS
    assert asyncio.run(asked("GET", "/v1/whoami")) == 401
