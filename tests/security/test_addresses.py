"""Where an administrator of a namespace has the registry ask or send: to public addresses alone, whatever
name, redirect or document leads elsewhere; and one administrator's issuers take no place of another's."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from registry_making import Api, Server, ok, refused

from cachesvc.oidc import documents
from cachesvc.oidc.issuers import Issuers
from cachesvc.outside import Destinations
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import Unavailable

from .issuer import Issuer, part, running_issuer
from .job_world import AUDIENCE, MAIN, World, job_world
from .test_webhooks import INSIDE, names_lead_to

OPEN = {"CACHESVC_SERVER_PRIVATE_ADDRESSES": "true"}


@contextlib.contextmanager
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A service inside: its port, and what it was sent. It answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        seen: list[bytes] = []
        held: list[socket.socket] = []

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                seen.append(b"connected")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield server.getsockname()[1], seen
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in held:
            connection.close()


def rule(api: Api, issuer: str, namespace: str = "team") -> Any:
    body = {"issuer": issuer, "audience": AUDIENCE, "claims": MAIN, "namespace": namespace}
    return api.http.post("/v1/publishers", json=body)


def unsigned(issuer: str) -> str:
    """What anybody can send: it makes the registry ask the issuer, if a rule names it."""
    head = {"alg": "ES256", "kid": "one", "typ": "JWT"}
    return f"{part(head)}.{part({'iss': issuer})}.c2ln"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("registry") / "data").running() as running:
        yield running


def of_an_administrator(server: Server, namespace: str = "team") -> Api:
    body = {"label": "admin", "role": "admin", "namespace": namespace, "days": 1}
    return server.api(ok(server.api().http.post("/v1/tokens", json=body))["secret"])


@pytest.mark.parametrize("host", INSIDE)
def test_an_issuer_inside_is_refused(server: Server, host: str) -> None:
    with listener() as (port, seen):
        for api in (of_an_administrator(server), server.api()):
            for scheme in ("https", "http"):
                answer = rule(api, f"{scheme}://{host}:{port}")
                assert answer.status_code == 422, answer.text
        assert seen == []


@pytest.mark.parametrize(
    "addresses",
    [
        (one,)
        for one in (
            *("127.0.0.1", "169.254.169.254", "::ffff:10.0.0.7", "fe80::1", "64:ff9b:1::1"),
            *("168.63.129.16", "192.0.0.192", "2002:a83f:8110::1"),  # metadata services of other clouds
        )
    ],
)
def test_an_issuer_s_name_that_leads_inside_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with listener() as (port, seen):
        issuer = f"https://issuer.example:{port}"
        issuers = Issuers()
        issuers.check(issuer)
        names_lead_to(monkeypatch, *addresses)
        error = failed(issuers, issuer)
        assert seen == [] and addresses[0] not in str(error) and "connect" not in str(error)
        assert "to which nothing is sent" in caplog.text  # the operator learns it


def test_an_issuer_s_name_that_leads_inside_and_outside_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def both(_host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        rows = [real(one, port, *arguments, **options) for one in ("93.184.216.34", "127.0.0.1")]
        return [row for some in rows for row in some]

    with listener() as (port, seen):
        monkeypatch.setattr(socket, "getaddrinfo", both)
        failed(Issuers(), f"https://issuer.example:{port}")
        assert seen == []


def test_an_issuer_s_name_is_looked_up_once_for_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second answer would be this machine: a name that is bound to another address meanwhile."""
    with listener() as (port, seen):
        monkeypatch.setattr(documents, "FETCH_SECONDS", 0.5)
        asked = names_lead_to(monkeypatch, "192.0.2.1", "127.0.0.1")
        failed(Issuers(), f"https://issuer.example:{port}")
        assert len(asked) == 1 and seen == []


def failed(issuers: Issuers, issuer: str) -> Unavailable:
    fetch = issuers.prepare(issuer, ["team"])
    assert fetch is not None
    fetch.result(20)
    with pytest.raises(Unavailable, match="its keys cannot be read") as caught:
        issuers.keys(issuer, "ES256", "one")
    return caught.value


def test_an_issuer_s_document_leads_inside(tmp_path: Path) -> None:
    """By the address of its keys, and by a redirect."""
    with job_world(tmp_path, SigningKey.generate()) as world, listener() as (port, seen):
        world.rule()
        world.issuer.discovery = {"jwks_uri": f"http://127.0.0.1:{port}/keys"}
        told(world, 503)
        world.issuer.discovery = {}
        world.issuer.redirect = f"http://127.0.0.1:{port}/"
        world.clock.now += 11
        told(world, 503)
        assert seen == []


def told(world: World, status: int) -> str:
    answer = world.exchange(world.issuer.sign(world.claims()))
    assert answer.status_code == status, answer.text
    return answer.text


def test_a_stranger_learns_nothing_of_what_an_issuer_s_address_is(tmp_path: Path) -> None:
    """A closed port, a silent service and one that speaks something else have one answer."""
    with listener() as (silent, _), running_issuer() as other, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        other.padding = 4 << 20
        ports = (silent, int(other.url.rpartition(":")[2]), closed.getsockname()[1])
        with Server(tmp_path / "data", env=OPEN).running() as server:
            said = set()
            for port in ports:
                issuer = f"http://127.0.0.1:{port}"
                ok(rule(server.api(), issuer))
                answer = server.api(None).http.post("/v1/oidc/token", json={"token": unsigned(issuer)})
                said.add(refused(answer, 503, "unavailable").replace(str(port), "PORT"))
            assert len(said) == 1, said


def test_issuers_that_never_answer_keep_no_job_out(tmp_path: Path) -> None:
    with (
        listener() as (port, seen),
        running_issuer() as honest,
        Server(tmp_path / "data", env=OPEN).running() as server,
    ):
        silent = [f"http://127.0.0.1:{port}/{number}" for number in range(40)]
        for number, issuer in enumerate(silent):
            ok(rule(server.api(), issuer, f"evil-{number % 2}"))
        ok(rule(server.api(), honest.url))
        over = threading.Event()

        def ask(issuer: str) -> None:
            api = server.api(None)
            while not over.wait(0.05):
                with contextlib.suppress(httpx.TimeoutException):
                    api.http.post("/v1/oidc/token", json={"token": unsigned(issuer)})

        with ThreadPoolExecutor(len(silent)) as pool:
            asked = [pool.submit(ask, issuer) for issuer in silent]
            try:
                until = time.monotonic() + 20
                while len(seen) < 8 and time.monotonic() < until:
                    time.sleep(0.05)
                times = [exchanged(server, honest) for _ in range(5)]
            finally:
                over.set()
        for one in asked:
            one.result()
    assert max(times) < 4.0, times


def exchanged(server: Server, issuer: Issuer) -> float:
    """Seconds until a job of an honest issuer has its token."""
    began = time.monotonic()
    token = issuer.sign(issuer.claims(time.time()))
    answer = server.api(None).http.post("/v1/oidc/token", json={"token": token})
    assert answer.status_code == 201, answer.text
    return time.monotonic() - began


def test_a_namespace_has_a_bounded_number_of_rules(tmp_path: Path) -> None:
    with job_world(tmp_path, SigningKey.generate()) as world:
        for _ in range(32):
            world.rule()
        answer = world.add()
        assert answer.status_code == 422 and "32 rules" in answer.text
        world.rule(namespace="other")


def test_an_operator_permits_addresses_inside() -> None:
    Issuers(Destinations(private=True)).check("http://127.0.0.1:1")
    Issuers(own="http://127.0.0.1:1").check("http://127.0.0.1:1")
