"""Test the failure modes of docs/operate.md: what users see while a part is gone, and that nobody has to
restart anything."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from registry_making import Api, Publication, Server, make, ok, refused

from cachesvc_client.bundle.seal import SigningKey
from tests.conftest import new_bucket, new_database
from tests.services.ceph import Gateway
from tests.services.process import free_port
from tests.services.relay import Relay, relay

FORGOTTEN_SECONDS = 6
"""Seconds after which no replica remembers an answer or a token."""


@dataclass
class World:
    server: Server
    database: Relay
    store: Relay
    redis: Relay
    publication: Publication

    def readiness(self) -> tuple[int, dict[str, str]]:
        answer = self.server.api(None).http.get("/readyz")
        return answer.status_code, answer.json()["parts"]

    def link(self) -> str:
        [row] = ok(self.server.api().resolve())["revisions"]
        return str(row["pack_url"])

    def works(self) -> None:
        """Assert that every part works within seconds of its return."""
        until = time.monotonic() + 20
        while self.readiness()[0] != 200:
            assert time.monotonic() < until, self.readiness()
            time.sleep(0.2)
        assert self.server.api().fetch(self.link()).content == self.publication.pack
        ok(self.server.api().publish(make(self.server.key, name=f"after-{time.monotonic_ns()}")))


@pytest.fixture(scope="module")
def world(
    postgresql: str, redis_url: str, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Start a registry whose three parts the test can take away."""
    database = new_database(postgresql)
    with contextlib.ExitStack() as stack:
        relays = [
            stack.enter_context(relay(f"{urlsplit(url).hostname}:{urlsplit(url).port}"))
            for url in (database, gateway.endpoint, redis_url)
        ]
        server = Server(tmp_path_factory.mktemp("outages") / "data")
        server.env = {
            **gateway.variables,
            "CACHESVC_SERVER_DATABASE": database.replace(
                urlsplit(database).netloc, f"tester@{relays[0].address}"
            ),
            "CACHESVC_SERVER_BUCKET": new_bucket(gateway.endpoint, gateway.client),
            "CACHESVC_SERVER_BUCKET_ENDPOINT": f"http://{relays[1].address}",
            "CACHESVC_SERVER_REDIS": f"redis://{relays[2].address}",
        }
        server.start()
        publication = make(server.key, content=b"kernel" * 100)
        ok(server.api().publish(publication))
        yield World(server, *relays, publication)
        assert server.stop() == 0


def test_without_the_database_only_links_work(world: World) -> None:
    """Links that were issued before still work. Everything else fails with a clear error, and the process
    stays alive."""
    link = world.link()
    world.database.close()
    try:
        time.sleep(FORGOTTEN_SECONDS)
        status, parts = world.readiness()
        assert (status, parts["blobs"]) == (503, "ok") and "index" in parts["index"]
        assert ok(world.server.api(None).http.get("/healthz"))
        refused(world.server.api().resolve(), 503, "unavailable", "index")
        refused(world.server.api().begin(world.publication), 503, "unavailable", "index")
        assert world.server.api().fetch(link).content == world.publication.pack
    finally:
        world.database.open()
    world.works()


def test_without_the_store_entries_are_still_resolved(world: World) -> None:
    """Nodes that have the bytes start from them."""
    other = make(world.server.key, name="while-it-is-gone")
    world.store.close()
    try:
        status, parts = world.readiness()
        assert (status, parts["index"]) == (503, "ok") and "bucket" in parts["blobs"]
        [row] = ok(world.server.api().resolve())["revisions"]
        refused(world.server.api().pack(row["revision"]), 503, "unavailable", "bucket")
        upload = ok(world.server.api().begin(other))["upload"]
        refused(world.server.api().put(upload, other.pack), 503, "unavailable", "bucket")
        refused(world.server.api().commit(upload, other), 422, "invalid", "was not uploaded")
    finally:
        world.store.open()
    world.works()
    ok(world.server.api().put(upload, other.pack))
    ok(world.server.api().commit(upload, other))


def test_without_redis_answers_are_slower_and_never_wrong(world: World) -> None:
    """It is slower, and never wrong."""
    world.redis.close()
    try:
        status, parts = world.readiness()
        assert status == 200 and parts["hot"] != "ok"
        head = make(world.server.key, name="no-redis", content=b"1")
        ok(world.server.api().publish(head))
        [row] = ok(world.server.api().resolve(name="no-redis"))["revisions"]
        assert row["revision"] == head.revision
        token = ok(
            world.server.api().http.post("/v1/tokens", json={"label": "a", "role": "read", "namespace": "*"})
        )
        ok(world.server.api(token["secret"]).resolve(name="no-redis"))
        ok(world.server.api().http.delete(f"/v1/tokens/{token['token']}"))
        time.sleep(FORGOTTEN_SECONDS)
        refused(world.server.api(token["secret"]).resolve(name="no-redis"), 401, "unauthenticated")
    finally:
        world.redis.open()
    world.works()


def test_replicas_are_replaced_one_by_one_without_an_error(
    postgresql: str, redis_url: str, gateway: Gateway, tmp_path: Path
) -> None:
    """An upgrade does this. The test asks as a load balancer does: a replica that does not take a connection
    gets no request."""
    env = {
        **gateway.variables,
        "CACHESVC_SERVER_DATABASE": new_database(postgresql),
        "CACHESVC_SERVER_REDIS": redis_url,
        "CACHESVC_SERVER_BUCKET": new_bucket(gateway.endpoint, gateway.client),
        "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
    }
    replicas = [Server(tmp_path / name, ["--port", str(free_port())], env).start() for name in ("one", "two")]
    token, publication = replicas[0].token, make(replicas[0].key)
    ok(Api(replicas[0].url, token).publish(publication))
    answers: list[int] = []
    over = threading.Event()

    def ask() -> None:
        urls = [server.url for server in replicas]
        while not over.is_set():
            urls.reverse()
            for url in urls:
                try:
                    answers.append(Api(url, token).resolve().status_code)
                    break
                except httpx.ConnectError:
                    continue
            else:
                answers.append(0)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for server in replicas:
            before = len(answers)
            assert server.stop() == 0
            server.start()
            assert len(answers) > before, "no request was made meanwhile"
            # The next replica stops only when this one answers again: a client that found this one closed
            # finds the other open.
            after, end = len(answers), time.monotonic() + 60
            while len(answers) < after + 2 and time.monotonic() < end:
                time.sleep(0.01)
    finally:
        over.set()
        asking.join(30)
        statuses = [server.stop() for server in replicas if server.process.poll() is None]
    assert statuses == [0, 0]
    assert set(answers) == {200}


def test_after_the_loss_of_the_signing_key_a_new_key_publishes(own_server: Server) -> None:
    """Revisions of the lost key stay. An operator makes and adds a new key, which publishes over them."""
    server = own_server.start()
    old = make(server.key, content=b"old")
    ok(server.api().publish(old))
    (server.data / "signing.key").unlink()
    fresh = SigningKey.generate()
    new = make(fresh, content=b"new")
    refused(server.api().publish(new, old.revision), 403, "untrusted", fresh.public.keyid, "signers add")
    signer = {"namespace": "team", "key": str(fresh.public), "label": "ci"}
    ok(server.api().http.post("/v1/signers", json=signer))
    [row] = ok(server.api().resolve())["revisions"]
    assert row["revision"] == old.revision
    ok(server.api().publish(new, old.revision))
    [row] = ok(server.api().resolve())["revisions"]
    assert row["revision"] == new.revision
    server.stop()
    server.start()
    assert set(server.ready) == {"url"}  # No start makes another key in its place.
