"""Test what receivers of events get, when, and how often, over both columns of backends: events are rows of
the index, and the receiver is a real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from receiver import Receiver, running_receiver, verifies
from registry_inside import ROOT, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Publication, make

from cachesvc.domain.access import Role, Token
from cachesvc.outside import Destinations
from cachesvc.registry import reports, webhooks
from cachesvc.registry.access import tokens
from cachesvc.registry.context import Outside, Packs, Registry
from cachesvc.registry.upkeep import gc, holdings, quarantine
from cachesvc.schema.access import TokenRequest
from cachesvc.schema.webhooks import EVENTS, WebhookRecord, WebhookRequest
from cachesvc.webhooks.sender import Sender
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import HeadConflict, InvalidRequest
from cachesvc_client.wire.requests.reports import ReportRequest, RevisionReport

DAY = 86_400
OPEN = Sender(Destinations(private=True), plain_http=True)
"""Sends to this machine too, as the tests' receivers are here."""


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as one:
        yield Inside(replace(one.registry, outside=Outside(sender=OPEN)), one.key, one.clock)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as running:
        yield running


def add(reg: Inside, receiver: Receiver, *events: str, namespace: str = "team") -> WebhookRecord:
    request = WebhookRequest(namespace, receiver.url, events, "a receiver")
    return webhooks.add_webhook(reg.registry, ROOT, request)


def only(reg: Inside) -> WebhookRecord:
    [row] = webhooks.list_webhooks(reg.registry, ROOT)
    return row


def deliver(registry: Registry) -> int:
    """Send what is due, as a replica's worker does."""
    count = 0
    while (taken := webhooks.take_receiver(registry)) is not None:
        count += webhooks.deliver(registry, taken)
    return count


def report(reg: Inside, publication: Publication, state: str, node: str = "a", token: Token = ROOT) -> None:
    request = ReportRequest(
        node * 32, FINGERPRINT, (RevisionReport(publication.revision, state),), why=("the driver changed",)
    )
    reports.report(reg.registry, token, request)


def test_a_publication_is_told_once_with_a_signature(reg: Inside, receiver: Receiver) -> None:
    webhook = add(reg, receiver)
    publication = make(reg.key, lane="pr-1")
    reg.publish(publication)
    assert only(reg).waiting == 1
    assert deliver(reg.registry) == 1
    [(headers, body)] = receiver.requests
    [event] = receiver.events
    assert event == {
        "format": "cachesvc-event/1",
        "id": headers["webhook-id"],
        "type": "revision.published",
        "at": reg.registry.now,
        "namespace": "team",
        "data": {
            "entry": publication.manifest.entry,
            "revision": publication.revision,
            "name": "bert",
            "tag": "latest",
            "target": "bert/f32",
            "lane": "pr-1",
            "bytes": len(publication.pack),
            "signer": reg.key.public,
            "published_by": "t-root",
        },
    }
    assert headers["content-type"] == "application/json"
    assert headers["webhook-timestamp"] == str(reg.registry.now)
    assert webhook.secret is not None and verifies(webhook.secret, headers, body)
    assert not verifies(webhook.secret, headers, body.replace(b"bert", b"evil"))
    assert not verifies(webhook.secret, {**headers, "webhook-timestamp": "1"}, body)
    row = only(reg)
    assert (row.waiting, row.failures, row.last_delivered) == (0, 0, reg.registry.now)
    assert deliver(reg.registry) == 0 and len(receiver.requests) == 1


def test_a_receiver_gets_the_events_that_it_asked_for_of_its_namespace(reg: Inside) -> None:
    with running_receiver() as team, running_receiver() as cold, running_receiver() as every:
        add(reg, team)
        add(reg, cold, "revision.cold")
        add(reg, every, namespace="*")
        reg.publish(make(reg.key))
        reg.publish(make(reg.key, namespace="other"))
        deliver(reg.registry)
        assert [event["namespace"] for event in team.events] == ["team"]
        assert cold.events == []
        assert sorted(event["namespace"] for event in every.events) == ["other", "team"]


def test_what_was_not_committed_is_not_told(reg: Inside, receiver: Receiver) -> None:
    add(reg, receiver)
    first = make(reg.key)
    reg.publish(first)
    with pytest.raises(HeadConflict):
        reg.publish(make(reg.key, content=b"other"))  # the head is another
    reg.publish(first, first.revision)  # a second commit of the head changes nothing
    deliver(reg.registry)
    assert [event["data"]["revision"] for event in receiver.events] == [first.revision]


def test_quarantine_and_cold_starts_are_told(reg: Inside, receiver: Receiver) -> None:
    add(reg, receiver, "revision.withheld", "revision.released", "revision.cold")
    one = make(reg.key)
    reg.publish(one)
    quarantine.withdraw(reg.registry, ROOT, one.revision, "it is wrong")
    quarantine.withdraw(reg.registry, ROOT, one.revision, "again")
    quarantine.release(reg.registry, ROOT, one.revision)
    others = [Token(f"t-{n}", "host", Role.report, "team") for n in range(3)]
    for number, token in enumerate(others):
        report(reg, one, "inert", "abc"[number], token)
    report(reg, one, "hit", "d")
    report(reg, one, "inert", "e")
    deliver(reg.registry)
    types = receiver.types()
    assert types[:3] == ["revision.withheld", "revision.released", "revision.cold"]
    assert set(types[3:-1]) <= {"revision.withheld", "revision.released"}
    assert types[-1] == "revision.cold" and types.count("revision.cold") == 2
    withheld, released, cold = receiver.events[:3]
    assert withheld["data"]["why"] == "it is wrong" and withheld["data"]["by"] == "t-root"
    assert "environment" not in withheld["data"] and released["data"]["revision"] == one.revision
    assert cold["data"]["environment"].startswith("sha256:") and cold["data"]["name"] == "bert"
    assert cold["data"]["why"] == "the driver changed"
    assert set(types) <= set(EVENTS)


def test_an_event_is_sent_again_after_a_failure_and_after_a_restart(
    reg: Inside, receiver: Receiver, column: Column, tmp_path: Path
) -> None:
    receiver.answer = 500
    add(reg, receiver)
    reg.publish(make(reg.key))
    assert deliver(reg.registry) == 0
    row = only(reg)
    assert (row.waiting, row.failures, row.last_error) == (1, 1, "status 500")
    assert row.retry is not None and 4 <= row.retry - reg.registry.now <= 6
    assert deliver(reg.registry) == 0 and len(receiver.requests) == 1  # not before its time
    reg.clock.now += 7
    deliver(reg.registry)
    assert len(receiver.requests) == 2 and only(reg).failures == 2
    receiver.answer = 200
    reg.clock.now += 40
    index, blobs = column.open(tmp_path)  # as another process opens them
    restarted = replace(reg.registry, index=index, packs=Packs(blobs))
    try:
        assert deliver(restarted) == 1
    finally:
        index.close()
    assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1
    assert (only(reg).waiting, only(reg).failures, only(reg).last_error) == (0, 0, "")


def test_an_event_that_fails_does_not_keep_back_the_next(reg: Inside, receiver: Receiver) -> None:
    add(reg, receiver)
    reg.publish(make(reg.key))
    receiver.answer = 400
    deliver(reg.registry)
    first = receiver.events[0]["id"]
    reg.publish(make(reg.key, name="other"))
    receiver.answer = 204
    reg.clock.now += 3
    assert deliver(reg.registry) == 0  # the receiver has failed just now
    reg.clock.now += 4
    deliver(reg.registry)
    assert [event["id"] == first for event in receiver.events] == [True, True, False]


def test_an_event_is_given_up_after_days_and_shown(reg: Inside, receiver: Receiver) -> None:
    receiver.answer = 503
    add(reg, receiver)
    reg.publish(make(reg.key))
    deliver(reg.registry)
    reg.clock.now += 2 * DAY
    deliver(reg.registry)
    sums = holdings.read_holdings(reg.registry)
    assert (sums.events_waiting, sums.oldest_event_seconds, sums.events_given_up) == (1, 2 * DAY, 0)
    reg.clock.now += DAY
    deliver(reg.registry)
    assert (only(reg).waiting, only(reg).dead) == (0, 1)
    sums = holdings.read_holdings(reg.registry)
    assert (sums.events_waiting, sums.oldest_event_seconds, sums.events_given_up) == (0, 0, 1)
    receiver.answer = 204
    reg.clock.now += DAY
    assert deliver(reg.registry) == 0
    gc.collect(reg.registry)
    assert only(reg).dead == 1
    reg.clock.now += 30 * DAY
    gc.collect(reg.registry)
    assert only(reg).dead == 0


def test_one_worker_at_a_time_serves_a_receiver(reg: Inside, receiver: Receiver) -> None:
    add(reg, receiver)
    reg.publish(make(reg.key))
    taken = webhooks.take_receiver(reg.registry)
    assert taken is not None and webhooks.take_receiver(reg.registry) is None
    reg.clock.now += webhooks.BUSY_SECONDS  # the worker has died
    assert webhooks.take_receiver(reg.registry) == taken
    assert webhooks.deliver(reg.registry, taken) == 1
    reg.publish(make(reg.key, name="next"))
    assert deliver(reg.registry) == 1  # it was given back


def test_what_waits_is_bounded_and_a_publication_goes_on(
    reg: Inside, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachesvc.index.webhooks.MOST_WAITING", 2)
    add(reg, receiver)
    for number in range(4):
        assert reg.publish(make(reg.key, name=f"m{number}")).created
    assert only(reg).waiting == 2
    monkeypatch.setattr(webhooks, "MOST", 1)
    with pytest.raises(InvalidRequest, match="has 1 webhooks already"):
        add(reg, receiver)


def test_a_removed_webhook_gets_nothing_and_its_events_are_collected(reg: Inside, receiver: Receiver) -> None:
    webhook = add(reg, receiver)
    reg.publish(make(reg.key))
    with reg.registry.index.write() as unit:
        found = unit.webhooks.interested("team", "revision.published")
    webhooks.remove_webhook(reg.registry, ROOT, webhook.webhook)
    # A publication that had found the webhook just before it was removed.
    with reg.registry.index.write() as unit:
        unit.webhooks.store(found, "evt_1", "revision.published", reg.registry.now, b"{}")
    assert deliver(reg.registry) == 0 and receiver.requests == []
    gc.collect(reg.registry)
    assert holdings.read_holdings(reg.registry).events_waiting == 0


def test_an_expiring_token_is_told_once_for_each_expiry(reg: Inside, receiver: Receiver) -> None:
    soon = tokens.create_token(reg.registry, ROOT, TokenRequest("ci", "write", "team", days=5))
    tokens.create_token(reg.registry, ROOT, TokenRequest("later", "write", "team", days=90))
    gc.collect(reg.registry)  # nobody is there to be told
    add(reg, receiver)
    for _ in range(2):
        gc.collect(reg.registry)
        deliver(reg.registry)
    [event] = receiver.events
    assert event["type"] == "token.expiring" and event["namespace"] == "team"
    assert event["data"] == {
        "token": soon.token,
        "label": "ci",
        "role": "write",
        "expires": soon.expires,
    }
    assert str(soon.secret) not in receiver.requests[0][1].decode()


def test_a_test_event_is_sent_at_once(reg: Inside, receiver: Receiver) -> None:
    webhook = add(reg, receiver, "revision.cold")
    outcome = webhooks.try_webhook(reg.registry, ROOT, webhook.webhook)
    assert outcome.delivered and outcome.said == "status 204"
    assert receiver.types() == ["webhook.test"] and only(reg).waiting == 0
    receiver.answer = 404
    outcome = webhooks.try_webhook(reg.registry, ROOT, webhook.webhook)
    assert (outcome.delivered, outcome.said) == (False, "status 404")
    values: dict[str, Any] = {"namespace": "team", "url": receiver.url}
    with pytest.raises(ValueError, match=r"known: revision\.published"):
        WebhookRequest(**values, events=("nothing",))
