"""Webhooks: nobody has the registry send requests where they choose, learn another namespace's events, forge
an event, or hold up the registry."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from receiver import Receiver, running_receiver, verifies
from registry_inside import ROOT, Clock, Inside, inside
from registry_making import make

from benchmarks.serving import serving
from cachesvc import outside
from cachesvc.bootstrap import open_registry
from cachesvc.domain.access import Role, Token
from cachesvc.outside import Destinations
from cachesvc.registry import audit, webhooks
from cachesvc.registry.access import tokens
from cachesvc.registry.context import Outside
from cachesvc.schema.access import TokenRequest
from cachesvc.schema.webhooks import WebhookRequest
from cachesvc.settings import Settings
from cachesvc.webhooks import sender
from cachesvc.webhooks.sender import Sender
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import InvalidRequest, NotFound

OPEN = Sender(Destinations(private=True), plain_http=True)
SECRET = "whsec_" + "a" * 44
INSIDE = (
    *("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "10.0.0.7", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "[::ffff:127.0.0.1]", "[fd00::1]", "[64:ff9b::7f00:1]", "[fe80::1]"),
    *("2130706433", "0x7f.1"),
    # IPv4 in forms that a network may translate, site-local addresses, multicast, and what is not assigned.
    *("[::7f00:1]", "[::ffff:0:a9fe:a9fe]", "[64:ff9b:1::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[fec0::1]"),
    *("[ff02::1]", "224.0.0.1", "[5f00::1]", "[3fff::1]"),
)
"""Hosts of this machine and of private networks, in the ways in which they can be written."""


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock()) as one:
        yield one


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as running:
        yield running


def opened(reg: Inside) -> Inside:
    return Inside(replace(reg.registry, outside=Outside(sender=OPEN)), reg.key, reg.clock)


def names_lead_to(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Have each look-up of a name give the next of ``answers``, the last one from then on. Return the names
    that were looked up."""
    asked: list[str] = []
    real, left = socket.getaddrinfo, list(answers)

    def look_up(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        return real(left.pop(0) if len(left) > 1 else left[0], port, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


@pytest.mark.parametrize(
    "host",
    INSIDE,
)
def test_a_receiver_inside_is_refused(reg: Inside, host: str) -> None:
    with pytest.raises(InvalidRequest, match="to which nothing is sent") as refused:
        webhooks.add_webhook(reg.registry, ROOT, WebhookRequest("team", f"https://{host}:8443/x"))
    assert "private_addresses" in refused.value.hint
    assert webhooks.list_webhooks(reg.registry, ROOT) == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://hooks.example/x", "plain HTTP"),
        ("https://user:password@hooks.example/", "is not one"),
        ("file:///etc/passwd", "is not one"),
        ("gopher://hooks.example/", "is not one"),
        ("https://hooks.example/\r\nX: y", "printable"),
    ],
)
def test_a_url_that_is_no_receiver_is_refused(reg: Inside, url: str, words: str) -> None:
    with pytest.raises((InvalidRequest, ValueError), match=words) as refused:
        webhooks.add_webhook(reg.registry, ROOT, WebhookRequest("team", url))
    assert "password@" not in str(refused.value)


def test_a_name_that_leads_inside_gets_nothing(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    port = receiver.url.split(":")[2].split("/")[0]
    names_lead_to(monkeypatch, "127.0.0.1")
    careful = Sender(plain_http=True)
    outcome = careful.send(f"http://hooks.example:{port}/", SECRET, "evt_1", b"{}", 1)
    assert not outcome.delivered and "the loopback address 127.0.0.1" in outcome.said
    assert receiver.requests == []


def test_a_name_is_looked_up_once_for_a_delivery(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of two look-ups the first would be checked and the second connected to.
    asked = names_lead_to(monkeypatch, "192.0.2.1", "127.0.0.1")
    monkeypatch.setattr(sender, "SECONDS", 1.0)
    monkeypatch.setattr(outside, "address_kind", lambda text: "loopback" if text == "127.0.0.1" else "public")
    port = receiver.url.split(":")[2].split("/")[0]
    outcome = Sender(plain_http=True).send(f"http://hooks.example:{port}/", SECRET, "evt_1", b"{}", 1)
    assert not outcome.delivered and receiver.requests == []
    assert asked == ["hooks.example"]


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    with running_receiver(answer="elsewhere", location=receiver.url) as first:
        outcome = OPEN.send(first.url, SECRET, "evt_1", b"{}", 1)
        assert (outcome.delivered, outcome.said) == (False, "status 307: redirects are not followed")
        assert len(first.requests) == 1 and receiver.requests == []


@pytest.mark.parametrize("answer", ["silence", "drip"])
def test_a_slow_receiver_holds_a_worker_for_a_bounded_time(
    receiver: Receiver, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "SECONDS", 0.7)
    receiver.answer = answer
    began = time.monotonic()
    outcome = OPEN.send(receiver.url, SECRET, "evt_1", b"{}", 1)
    assert not outcome.delivered and time.monotonic() - began < 10


def test_an_endless_answer_is_not_read(receiver: Receiver) -> None:
    receiver.answer = "endless"
    outcome = OPEN.send(receiver.url, SECRET, "evt_1", b"{}", 1)
    assert outcome.delivered and outcome.seconds < 5


def test_a_receiver_that_hangs_holds_up_no_publication_and_no_other_receiver(
    reg: Inside, receiver: Receiver
) -> None:
    registry = opened(reg).registry
    with running_receiver(answer="silence") as hanging:
        for url in (hanging.url, receiver.url):
            webhooks.add_webhook(registry, ROOT, WebhookRequest("team", url))
        with serving(registry) as url:
            assert reg.publish(make(reg.key)).created
            hanging.wait(1)
            receiver.wait(1)
            began = time.monotonic()
            assert reg.publish(make(reg.key, name="second")).created
            assert httpx.get(f"{url}/readyz").status_code == 200
            assert time.monotonic() - began < 5  # the hanging receiver takes ten seconds
            receiver.wait(2)
            hanging.over.set()
    assert receiver.types() == ["revision.published"] * 2


def test_an_administrator_reaches_the_webhooks_of_the_own_namespace_alone(
    reg: Inside, receiver: Receiver
) -> None:
    registry = opened(reg).registry
    here, there = (Token(f"t-{name}", name, Role.admin, name) for name in ("team", "other"))
    webhook = webhooks.add_webhook(registry, here, WebhookRequest("team", receiver.url)).webhook
    assert webhooks.list_webhooks(registry, there) == []
    for act in (webhooks.try_webhook, webhooks.remove_webhook):
        with pytest.raises(NotFound):
            act(registry, there, webhook)
    for namespace in ("team", "*"):
        with pytest.raises(Exception, match="may not"):
            webhooks.add_webhook(registry, there, WebhookRequest(namespace, receiver.url))
    reg.publish(make(reg.key))
    with registry.index.read() as unit:
        assert unit.webhooks.interested("other", "revision.published") == []
    assert receiver.requests == [] and webhooks.list_webhooks(registry, here)[0].waiting == 1


def test_a_secret_is_shown_once_and_is_in_no_log(
    reg: Inside, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    registry = opened(reg).registry
    caplog.set_level(logging.DEBUG)
    admin = tokens.create_token(registry, None, TokenRequest("admin", "admin", "*"))
    receiver.answer = 500
    headers = {"Authorization": f"Bearer {admin.secret}"}
    with serving(registry) as url:
        created = httpx.post(
            f"{url}/v1/webhooks", headers=headers, json={"namespace": "team", "url": receiver.url}
        )
        secret = created.json()["secret"]
        assert created.status_code == 201 and created.headers["cache-control"] == "no-store"
        assert secret.startswith("whsec_") and len(secret) == 50
        listed = httpx.get(f"{url}/v1/webhooks", headers=headers)
        path = f"{url}/v1/webhooks/{created.json()['webhook']}"
        tried = httpx.post(f"{path}/test", headers=headers)
        assert tried.json()["said"] == "status 500"
        reg.publish(make(reg.key))
        receiver.wait(2)
        assert httpx.delete(path, headers=headers).status_code == 204
    assert secret not in listed.text + tried.text + caplog.text
    rows = audit.audit_page(registry, ROOT).rows
    assert {"webhook.add", "webhook.remove"} <= {row.action for row in rows}
    assert secret not in str(rows) and "/hook" not in str(rows)  # a path may be a secret of the receiver
    assert verifies(secret, *receiver.requests[0]) and not verifies(SECRET, *receiver.requests[0])


def test_the_operator_s_settings_decide_where_events_go(tmp_path: Path) -> None:
    for allowed in (False, True):
        settings = Settings(
            data=tmp_path / str(allowed), private_addresses=allowed, webhook_plain_http=allowed
        )
        with open_registry(settings) as registry:
            if allowed:
                assert registry.outside.sender.check("http://127.0.0.1:1/").port == 1
            else:
                with pytest.raises(InvalidRequest):
                    registry.outside.sender.check("http://hooks.example/")
                with pytest.raises(InvalidRequest):
                    registry.outside.sender.check("https://127.0.0.1/")


def test_tests_of_receivers_that_hang_take_no_place_of_others_answers(
    reg: Inside, receiver: Receiver
) -> None:
    """Two administrators with some tokens each had every list and page of the process wait for ten seconds,
    again and again."""
    registry = opened(reg).registry
    receiver.answer = "silence"
    asked: list[str] = []
    for namespace in ("one", "two"):
        for _ in range(4):
            request = TokenRequest("t", "admin", namespace)
            secret = tokens.create_token(registry, None, request).secret
            by = Token("t-x", "x", Role.admin, namespace)
            hook = webhooks.add_webhook(registry, by, WebhookRequest(namespace, receiver.url)).webhook
            asked += [f"{secret} {hook}"] * 2
    reader = tokens.create_token(registry, None, TokenRequest("r", "read", "team")).secret
    with serving(registry) as url, ThreadPoolExecutor(32) as threads:

        def try_one(what: str) -> int:
            secret, _, hook = what.partition(" ")
            headers = {"Authorization": f"Bearer {secret}"}
            return httpx.post(f"{url}/v1/webhooks/{hook}/test", headers=headers, timeout=60).status_code

        running = [threads.submit(try_one, what) for what in asked]
        time.sleep(1)
        for path in ("/v1/heads?namespace=team", "/v1/namespaces/team/names", "/v1/entries"):
            began = time.monotonic()
            answer = httpx.get(f"{url}{path}", headers={"Authorization": f"Bearer {reader}"}, timeout=60)
            assert answer.status_code < 500 and time.monotonic() - began < 2, (path, answer.text)
        receiver.over.set()
        assert {one.result() for one in running} <= {200, 429}
