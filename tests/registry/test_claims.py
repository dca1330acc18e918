"""Test claims over HTTP, on both columns of backends, with several replicas and without Redis."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from registry_inside import ROOT, START, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Api, Publication, Server, make, ok, refused

from benchmarks.serving import serving
from cachesvc.domain.access import Role, Token
from cachesvc.registry import claims
from cachesvc.registry import publish as publishing
from cachesvc.registry.access import tokens
from cachesvc.registry.upkeep import gc
from cachesvc.schema.access import TokenRequest
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ClaimLost, Forbidden, TooMany
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.partitions import known_partition
from cachesvc_client.wire.requests.claims import (
    ClaimRef,
    ClaimRelease,
    ClaimRequest,
    ClaimSubject,
    exact_environment,
    satisfied_claim_keys,
)
from cachesvc_client.wire.requests.protocol import CommitRequest
from tests.services.ceph import Gateway
from tests.services.process import free_port
from tests.services.redis import redis_server

HERE = str(known_partition(FINGERPRINT))


def name() -> str:
    return "m" + secrets.token_hex(6)


def body(of: str, holder: str = "a", **more: Any) -> dict[str, Any]:
    place = {key: more.pop(key) for key in ("lane", "target", "workload", "tag") if key in more}
    subject = {"namespace": "team", "name": of, "environment": HERE, **place}
    return {"subject": subject, "holder": holder * 32, "who": f"host {holder}", **more}


def claim(api: Api, of: str, holder: str = "a", **more: Any) -> dict[str, Any]:
    return ok(api.http.post("/v1/claims", json=body(of, holder, **more), timeout=60))


def ref(answer: dict[str, Any], holder: str = "a") -> dict[str, Any]:
    return {"key": answer["key"], "holder": holder * 32, "fence": answer["fence"]}


def renew(api: Api, ref_shown: dict[str, Any]) -> Any:
    return api.http.post("/v1/claims/renew", json=ref_shown)


def release(api: Api, claim_ref: dict[str, Any], **more: Any) -> None:
    ok(api.http.post("/v1/claims/release", json={"claim": claim_ref, **more}))


def publish(
    api: Api, publication: Publication, claim_ref: dict[str, Any] | None = None, head: str | None = None
) -> Any:
    upload = ok(api.begin(publication))["upload"]
    ok(api.put(upload, publication.pack))
    return commit(api, upload, publication, claim_ref, head)


def commit(
    api: Api, upload: str, publication: Publication, claim_ref: dict[str, Any] | None, head: str | None = None
) -> Any:
    request_body = {
        "envelope": publication.envelope.decode(),
        "head": head,
        **({"claim": claim_ref} if claim_ref else {}),
    }
    return api.http.post(f"/v1/uploads/{upload}/commit", json=request_body)


@contextmanager
def waiting(*calls: Callable[[], Any]) -> Iterator[list[Future[Any]]]:
    """Run calls in threads, each under way for a moment at least."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        time.sleep(0.5)
        yield futures


def test_one_client_holds_the_claim_and_the_others_learn_the_holder(api: Api) -> None:
    of = name()
    mine = claim(api, of)
    assert (mine["state"], mine["age"], 50 < mine["left"] <= 60) == ("yours", 0, True)
    again = claim(api, of)  # The clock goes on between two requests.
    assert again == {**mine, "left": again["left"], "age": again["age"]} and again["age"] >= mine["age"]
    other_answer = claim(api, of, "b")
    assert (other_answer["state"], other_answer["who"], other_answer["fence"]) == (
        "held",
        "host a",
        mine["fence"],
    )
    assert claim(api, of, "b", tag="v2")["state"] == "yours", "another tag is another claim"
    digest = str(Digest.of(b"w"))
    assert claim(api, of, "b", target="t", workload=digest)["state"] == "yours"
    assert ok(renew(api, ref(mine)))["state"] == "yours"
    refused(renew(api, ref(mine, "b")), 409, "claim_lost", "taken over by host a")
    release(api, ref(mine, "b"))
    assert claim(api, of, "b")["state"] == "held", "only the holder can release the claim"
    release(api, ref(mine))
    release(api, ref(mine))
    theirs = claim(api, of, "b")
    assert (theirs["state"], theirs["fence"] > mine["fence"]) == ("yours", True)
    refused(renew(api, ref(mine)), 409, "claim_lost", "taken over by host b")


def test_roles_and_lanes(server: Server, api: Api) -> None:
    def token(role: str, namespace: str = "team", **more: Any) -> Api:
        request = {"label": "x", "role": role, "namespace": namespace, **more}
        return server.api(ok(api.http.post("/v1/tokens", json=request))["secret"])

    of, lane = name(), {"lane": "pr-1"}
    for stranger in (token("read"), token("report"), token("write", "other"), token("write", **lane)):
        refused(stranger.http.post("/v1/claims", json=body(of)), 403, "forbidden")
    refused(server.api(None).http.post("/v1/claims", json=body(of)), 401, "unauthenticated")
    assert claim(token("write"), of)["state"] == "yours"
    in_lane = claim(token("write", **lane), of, "b", **lane)
    assert in_lane["state"] == "yours", "a lane's claim is its own"
    for stranger in (token("write", "other"), token("write", lane="pr-2")):
        refused(renew(stranger, ref(in_lane, "b")), 409, "claim_lost", "given back, or ended long ago")
        answer = stranger.http.post("/v1/claims/release", json={"claim": ref(in_lane, "b")})
        refused(answer, 409, "claim_lost")
    refused(renew(token("report"), ref(in_lane, "b")), 403, "forbidden")
    assert ok(renew(api, ref(in_lane, "b")))["state"] == "yours"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"holder": "a"}, "32 hex digits"),
        ({"wait": 31}, "wait"),
        ({"wait": -1}, "wait"),
        ({"who": "x" * 101}, "who"),
        ({"who": "a\nb"}, "who"),
        ({"subject": {"namespace": "team", "name": "m", "environment": "x"}}, "environment"),
        (
            {"subject": {"namespace": "team", "name": "m", "environment": HERE, "target": "t"}},
            "both, or neither",
        ),
    ],
)
def test_bad_input_is_one_line(api: Api, change: dict[str, Any], word: str) -> None:
    refused(api.http.post("/v1/claims", json={**body(name()), **change}), 422, "invalid", word)


def test_a_waiting_client_hears_at_once_of_a_release(api: Api) -> None:
    of = name()
    mine = claim(api, of)
    with waiting(lambda: claim(api, of, "b", wait=20)) as [theirs]:
        began = time.monotonic()
        release(api, ref(mine))
        answer = theirs.result(20)
    assert (answer["state"], answer["fence"] > mine["fence"]) == ("yours", True)
    assert time.monotonic() - began < 8


def test_all_waiting_clients_hear_at_once_of_a_publication(api: Api, key: SigningKey) -> None:
    """The publisher holds the claim, or has never heard of claims; the claim is the exact one, or the
    name's."""
    for with_claim in (True, False):
        of = name()
        publication = make(key, name=of)
        statement, keys = publication.manifest.statement, satisfied_claim_keys(publication.manifest)
        exact = {"target": str(statement.target), "workload": str(publication.manifest.workload.key)}
        environment = {"subject": {**body(of, **exact)["subject"], "environment": _exact(publication)}}
        mine = claim(api, of)
        other = ok(api.http.post("/v1/claims", json={**body(of, "b"), **environment}))
        assert [mine["key"], other["key"]] == [keys[1], keys[0]]

        def wait(holder: str, more: dict[str, Any], of: str = of) -> Any:
            return ok(api.http.post("/v1/claims", json={**body(of, holder, wait=20), **more}, timeout=60))

        calls = [lambda n=n, w=wait: w(n, {}) for n in "cdef"]
        calls += [lambda n=n, w=wait, e=environment: w(n, e) for n in "12"]
        with waiting(*calls) as futures:
            began = time.monotonic()
            ok(publish(api, publication, ref(mine) if with_claim else None))
            assert [future.result(20)["state"] for future in futures] == ["published"] * 6
        assert time.monotonic() - began < 8
        # The commit releases the publisher's claim. A client that did not show its claim keeps the claim.
        assert (renew(api, ref(mine)).status_code, renew(api, ref(other, "b")).status_code) == (
            (409, 200) if with_claim else (200, 200)
        )
        late = claim(api, of, "9", wait=20)
        assert (late["state"], late["fence"]) == ("published", mine["fence"])
        assert claim(api, of, "9", seen=late["fence"])["state"] == ("yours" if with_claim else "held")


def _exact(publication: Publication) -> str:
    return str(exact_environment(publication.manifest.fingerprint))


def test_a_commit_of_a_client_that_lost_its_claim_is_refused(own_column_server: Server) -> None:
    """The holder is silent for longer than the claim lasts, and comes back. Any other commit is accepted."""
    own_column_server.env["CACHESVC_SERVER_CLAIM_SECONDS"] = "2"
    server = own_column_server.start()
    api, of = server.api(), name()
    stalled, mine = make(server.key, name=of, content=b"stalled"), claim(api, of)
    upload = ok(api.begin(stalled))["upload"]
    ok(api.put(upload, stalled.pack))
    began = time.monotonic()
    theirs = claim(api, of, "b", wait=20)
    assert theirs["state"] == "yours" and 0.5 < time.monotonic() - began < 8
    refused(
        commit(api, upload, stalled, ref(mine)), 409, "claim_lost", "taken over by host b", "look for a new"
    )
    assert api.resolve(name=of).status_code == 404
    first = make(server.key, name=of, content=b"theirs")
    assert ok(publish(api, first, ref(theirs, "b")))["created"]
    # The commit is against a newer head and shows the claim: the registry checks the claim first, since that
    # reason is the clearer one.
    refused(commit(api, upload, stalled, ref(mine), first.revision), 409, "claim_lost")
    refused(commit(api, upload, stalled, None), 409, "head_conflict")
    again = make(server.key, name=of, content=b"forced")
    assert ok(publish(api, again, None, first.revision))["created"], (
        "a commit without a claim goes by the head alone"
    )
    wrong = claim(api, name(), "c")
    publication = make(server.key, name=of, content=b"more")
    refused(publish(api, publication, ref(wrong, "c"), again.revision), 422, "invalid", "of another name")


def test_an_expired_claim_that_nobody_took_still_publishes(own_server: Server) -> None:
    own_server.env["CACHESVC_SERVER_CLAIM_SECONDS"] = "2"
    server = own_server.start()
    api, of = server.api(), name()
    mine, publication = claim(api, of), make(server.key, name=of)
    time.sleep(2.5)
    upload = ok(api.begin(publication))["upload"]
    ok(api.put(upload, publication.pack))
    assert ok(commit(api, upload, publication, ref(mine)))["created"]
    assert not ok(commit(api, upload, publication, ref(mine)))["created"], (
        "a client can ask again for a lost answer"
    )


def test_many_waiting_clients_stop_nobody_from_working(server: Server, api: Api, key: SigningKey) -> None:
    """150 clients wait in one process for one claim: others resolve and publish meanwhile, and all get an
    answer."""
    of, number = name(), 150
    mine = claim(api, of)
    answers: list[dict[str, Any]] = []

    def wait(index: int) -> None:
        own = server.api()
        claim_body = {**body(of, wait=30), "holder": f"{index:032x}"}
        answers.append(ok(own.http.post("/v1/claims", json=claim_body, timeout=60)))

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20
    while time.monotonic() < until and _waiters(api) < number:
        time.sleep(0.05)
    assert _waiters(api) == number
    began = time.monotonic()
    other = make(key, name=name())
    ok(api.publish(other))
    ok(api.resolve(name=other.manifest.statement.name))
    assert time.monotonic() - began < 15
    ok(publish(api, make(key, name=of), ref(mine)))
    for thread in threads:
        thread.join(30)
    assert [answer["state"] for answer in answers] == ["published"] * number
    assert _waiters(api) == 0


def test_a_fleet_waits_with_one_token_and_publishes_with_it(tmp_path: Path) -> None:
    """More wait than may have a request under way; those that were not let wait asked once a second."""
    number, of = 12, name()
    with inside(tmp_path, KEY, Clock()) as reg, serving(reg.registry, token_requests=4) as url:
        secret = tokens.create_token(reg.registry, ROOT, TokenRequest("fleet", "write", "team")).secret
        http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=30)
        mine = ok(http.post("/v1/claims", json=body(of)))

        def wait(index: int) -> str:
            own = {**body(of, wait=20), "holder": f"{index:032x}"}
            return str(ok(http.post("/v1/claims", json=own))["state"])

        with ThreadPoolExecutor(number) as pool:
            states = []
            for index in range(number):
                states.append(pool.submit(wait, index))
                time.sleep(0.05)
            ok(http.get("/v1/whoami"))
            ok(http.post("/v1/claims/release", json={"claim": ref(mine), "done": True}))
            assert [state.result(20) for state in states] == ["published"] * number


def test_who_asks_for_a_claim_of_another_waits_for_no_writer(reg: Inside) -> None:
    """Of a fleet of 1,000 each took a transaction to learn that another one compiles."""
    subject = ClaimSubject(Namespace("team"), ShortName(name()), known_partition(FINGERPRINT))
    assert claims.take(reg.registry, ROOT, ClaimRequest(subject, "a" * 32)).state == "yours"
    with reg.registry.index.write(), ThreadPoolExecutor(1) as pool:
        other = pool.submit(claims.take, reg.registry, ROOT, ClaimRequest(subject, "b" * 32))
        assert other.result(5).state == "held"


def _waiters(api: Api) -> int:
    text = api.http.get("/metrics").text
    [line] = [line for line in text.splitlines() if line.startswith("cachesvc_claim_waiters ")]
    return int(float(line.split()[1]))


def test_a_server_that_ends_answers_waiting_clients(own_server: Server) -> None:
    server = own_server.start()
    api, of = server.api(), name()
    claim(api, of)
    with waiting(lambda: claim(api, of, "b", wait=30)) as [theirs]:
        began = time.monotonic()
        assert server.stop() == 0
        assert theirs.result(10)["state"] == "held"
        assert time.monotonic() - began < 5


def test_a_client_that_went_away_gets_no_claim(own_server: Server) -> None:
    server = own_server.start()
    api, of = server.api(), name()
    mine = claim(api, of)
    with pytest.raises(httpx.ReadTimeout):
        api.http.post("/v1/claims", json=body(of, "b", wait=20), timeout=1)
    release(api, ref(mine))
    time.sleep(1.5)
    assert claim(api, of, "c")["state"] == "yours"


def replica(tmp_path: Path, number: int, variables: dict[str, str]) -> Server:
    return Server(tmp_path / str(number), env=variables).start()


@pytest.mark.parametrize("redis", ["there", "none", "killed"])
def test_replicas_hear_of_each_others_claims_and_a_little_later_without_redis(
    tmp_path: Path, database: str, gateway: Gateway, bucket_at_gateway: str, redis: str
) -> None:
    variables = {
        **gateway.variables,
        "CACHESVC_SERVER_DATABASE": database,
        "CACHESVC_SERVER_BUCKET": bucket_at_gateway,
        "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
    }
    port = free_port()
    running = redis_server(port) if redis != "none" else None
    if running is not None:
        running.__enter__()
        variables["CACHESVC_SERVER_REDIS"] = f"redis://127.0.0.1:{port}"
    one, two = replica(tmp_path, 1, variables), replica(tmp_path, 2, variables)
    try:
        here, there = one.api(), two.api(one.token)
        seconds = []
        for turn in range(3):
            of = name()
            mine = claim(here, of)
            assert claim(there, of, "b")["state"] == "held"
            with waiting(lambda of=of: claim(there, of, "b", wait=20)) as [theirs]:
                if redis == "killed" and turn == 0:
                    running.__exit__(None, None, None)
                ok(publish(here, make(one.key, name=of), ref(mine)))
                committed = time.monotonic()
                assert theirs.result(20)["state"] == "published"
                seconds.append(time.monotonic() - committed)
        # With Redis the client hears at once; without Redis, at the next look, a second later.
        assert sorted(seconds)[1] < (0.6 if redis == "there" else 5), seconds
    finally:
        statuses = [server.stop() for server in (one, two)]
        if running is not None and redis == "there":
            running.__exit__(None, None, None)
    assert statuses == [0, 0]


# In this process -------------------------------------------------------------------------------

KEY = SigningKey.generate()


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, KEY, Clock(), column=column) as registry:
        yield registry


def request(of: str, holder: str = "a", lane: str | None = None) -> ClaimRequest:
    subject = ClaimSubject(Namespace("team"), ShortName(of), Digest(HERE), lane=Lane(lane) if lane else None)
    return ClaimRequest(subject, holder * 32, f"host {holder}")


def test_clocks_of_replicas_that_differ_by_hours_change_nothing(tmp_path: Path, column: Column) -> None:
    """The database's clock ends the claim: no replica takes it early, and none keeps it for ever."""
    slow, fast = Clock(), Clock()
    fast.now += 7200
    with inside(tmp_path, KEY, slow, column=column) as one, inside(tmp_path, KEY, fast, column=column) as two:
        mine = claims.take(one.registry, ROOT, request("m"))
        assert (mine.state, mine.left, mine.age) == ("yours", 60, 0)
        theirs = claims.take(two.registry, ROOT, request("m", "b"))
        assert (theirs.state, theirs.left > 50, theirs.age < 9) == ("held", True, True)
        claims.release(one.registry, ROOT, ClaimRelease(ClaimRef(mine.key, "a" * 32, mine.fence)))
        ahead = claims.take(two.registry, ROOT, request("m", "b"))
        assert claims.take(one.registry, ROOT, request("m", "c")).state == "held"
        renewed = claims.renew(two.registry, ROOT, ClaimRef(ahead.key, "b" * 32, ahead.fence))
        assert 50 < renewed.left <= 60


def test_a_token_holds_a_bounded_number_of_claims(reg: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LIVE_PER_TOKEN", 3)
    for number in range(3):
        assert claims.take(reg.registry, ROOT, request(f"m{number}")).state == "yours"
    with pytest.raises(TooMany, match="holds 3 claims"):
        claims.take(reg.registry, ROOT, request("m3"))
    other = Token("t-2", "x", Role.write, "team")
    assert claims.take(reg.registry, other, request("m3")).state == "yours", (
        "the refused request took nothing"
    )
    assert claims.take(reg.registry, ROOT, request("m0")).state == "yours"
    with pytest.raises(Forbidden):
        claims.take(reg.registry, Token("t-3", "x", Role.read, "team"), request("m9"))


def test_collection_keeps_current_claims_and_forgets_old_ones(reg: Inside) -> None:
    current, old = (
        claims.take(reg.registry, ROOT, request("m")),
        claims.take(reg.registry, ROOT, request("old")),
    )
    with reg.registry.index.write() as unit:
        unit.claims._session.connection().execute(
            sa.text("UPDATE claims SET expires = expires - 100000 WHERE name = 'old'")
        )
    gc.collect(reg.registry)
    refs = [ClaimRef(one.key, "a" * 32, one.fence) for one in (current, old)]
    assert claims.renew(reg.registry, ROOT, refs[0]).state == "yours"
    with pytest.raises(ClaimLost, match="ended long ago"):
        claims.renew(reg.registry, ROOT, refs[1])


def test_a_refused_commit_changes_nothing(reg: Inside) -> None:
    publication = make(KEY, sequence=START * 1000)
    mine = claims.take(reg.registry, ROOT, request("bert"))
    claim_ref = ClaimRef(mine.key, "a" * 32, mine.fence)
    claims.release(reg.registry, ROOT, ClaimRelease(claim_ref))
    upload = reg.begin(publication)
    reg.put(upload, publication.pack)
    with pytest.raises(ClaimLost):
        publishing.commit(
            reg.registry, ROOT, upload, CommitRequest(publication.envelope.decode(), None, claim_ref)
        )
    assert reg.referenced() == set()
    assert reg.commit(upload, publication).created
