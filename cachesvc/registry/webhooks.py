"""Tell the receivers that administrators name what happens in their namespaces.

An event is a row of the index, written in the transaction of what happened (`announce`). `deliver` sends the
rows of one receiver, in order, at least once each; one worker at a time serves a receiver, whichever replica
it belongs to. Nothing here slows or fails what is announced: a publication reads one small table, and writes
a row for each receiver.
"""

from __future__ import annotations

import base64
import logging
import random
import re
import secrets
from collections.abc import Iterable

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.domain.retention import DAY
from cachesvc.index.entries.entries import Published
from cachesvc.index.unit import Unit
from cachesvc.index.webhooks import Delivery, Receiver
from cachesvc.schema.entries import RevisionRecord
from cachesvc.schema.webhooks import (
    PUBLISHED,
    SECRET_PREFIX,
    TEST,
    TOKEN_EXPIRING,
    DeliveryOutcome,
    Event,
    WebhookRecord,
    WebhookRequest,
)
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.manifest.records import Manifest

from .audit import note
from .context import Registry

MOST = 20
"""Webhooks of one namespace, at most: each gets a row for each event."""
DELAYS = (5, 30, 120, 600, 1800, 3600)
"""Seconds until the next try, after the first failure, the second, and so on; the last one from then on."""
GIVEN_UP_DAYS = 3
"""Days after which an event is not sent again."""
KEPT_DAYS = 30
"""Days for which an event that was given up is counted."""
BUSY_SECONDS = 60
"""Seconds for which a worker takes a receiver, and then again: longer than one try. A worker that dies in the
middle has it up that long."""
AT_ONCE = 100
"""Events that a receiver gets before another receiver has its turn."""
EXPIRING_DAYS = 7
"""Days before its end at which a token's expiry is announced."""
_ID = re.compile(r"w-[0-9a-f]{16}")

_log = logging.getLogger("cachesvc.webhooks")


def add_webhook(registry: Registry, by: Token, request: WebhookRequest) -> WebhookRecord:
    """Adds a webhook. Only the answer has its secret. Raises ``InvalidRequest`` for a URL to which nothing is
    sent, ``Forbidden``."""
    demand(by, Action.admin, request.namespace)
    origin = registry.outside.sender.check(request.url)
    secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    record = WebhookRecord(
        webhook="w-" + secrets.token_hex(8),
        namespace=request.namespace,
        url=request.url,
        events=request.events,
        label=request.label,
        created=registry.now,
        secret=secret,
    )
    with registry.index.write() as unit:
        if unit.webhooks.count(request.namespace) >= MOST:
            raise InvalidRequest(
                f"namespace {request.namespace} has {MOST} webhooks already", "remove one that is not used"
            )
        unit.webhooks.add(record, secret)
        details = {"to": str(origin), "events": " ".join(request.events) or "all", "label": request.label}
        note(registry, unit, by, "webhook.add", request.namespace, record.webhook, **details)
    return record


def list_webhooks(registry: Registry, by: Token) -> list[WebhookRecord]:
    """Returns the webhooks of the admin's namespace; for ``*`` all."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return unit.webhooks.all(by.namespace)


def remove_webhook(registry: Registry, by: Token, webhook: str) -> None:
    """Removes a webhook with the events that wait for its receiver. Raises ``NotFound``, also for one that
    the admin may not see."""
    with registry.index.write() as unit:
        record, _ = _administered(unit, by, webhook)
        unit.webhooks.remove(webhook)
        note(registry, unit, by, "webhook.remove", record.namespace, webhook, label=record.label)


def try_webhook(registry: Registry, by: Token, webhook: str) -> DeliveryOutcome:
    """Sends an event of the type ``webhook.test`` to one receiver now, once, and returns what came of it.
    Raises ``NotFound`` as ``remove_webhook`` does."""
    with registry.index.read() as unit:
        record, secret = _administered(unit, by, webhook)
    event = _event(registry, TEST, record.namespace, {"webhook": webhook})
    return registry.outside.sender.send(record.url, secret, event.id, codec.canonical(event), registry.now)


def announce(
    registry: Registry, unit: Unit, kind: str, namespace: str, data: dict[str, str | int | None]
) -> None:
    """Stores an event for each receiver that asked for it, in the transaction of ``unit``. ``data``: what is
    absent (``None``) is omitted."""
    receivers = unit.webhooks.interested(namespace, kind)
    if receivers:
        event = _event(registry, kind, namespace, data)
        unit.webhooks.store(receivers, event.id, kind, event.at, codec.canonical(event))


def announce_publication(
    registry: Registry, unit: Unit, manifest: Manifest, published: Published, deed: str | None
) -> None:
    """Announces that a revision became the head of its entry. ``deed``: *tag* or *rollback*, if it repeats
    another one."""
    statement = manifest.statement
    data: dict[str, str | int | None] = {
        "entry": manifest.entry,
        "revision": published.revision,
        "name": statement.name,
        "tag": statement.tag,
        "target": statement.target,
        "lane": statement.lane,
        "bytes": manifest.pack.size,
        "signer": published.signer,
        "published_by": published.published_by,
        "deed": deed,
    }
    announce(registry, unit, PUBLISHED, statement.namespace, data)


def announce_revision(
    registry: Registry, unit: Unit, kind: str, row: RevisionRecord | None, **more: str | int | None
) -> None:
    """Announces what happened to a revision; nothing for one that is gone."""
    if row is None:
        return
    data: dict[str, str | int | None] = {
        "entry": row.entry,
        "revision": row.revision,
        "name": row.name,
        "tag": row.tag,
        "target": row.target,
        "lane": row.lane,
        **more,
    }
    announce(registry, unit, kind, row.namespace, data)


def announce_expiring_tokens(registry: Registry, unit: Unit) -> int:
    """Announces the tokens that expire soon, each once for each expiry, and returns how many. Tokens of CI
    jobs, which live for minutes, are omitted."""
    if not unit.webhooks.all(ANY):
        return 0
    now = registry.now
    rows = unit.tokens.announce_expiring(now, now + EXPIRING_DAYS * DAY)
    for row in rows:
        data: dict[str, str | int | None] = {
            "token": row.token,
            "label": row.label,
            "role": row.role.name,
            "lane": row.lane,
            "expires": row.life.expires,
        }
        announce(registry, unit, TOKEN_EXPIRING, row.namespace, data)
    return len(rows)


def take_receiver(registry: Registry) -> Receiver | None:
    """Takes a receiver that is to get an event now; ``None`` if there is none."""
    with registry.index.read() as unit:
        if not unit.webhooks.anything_due(registry.now):
            return None
    with registry.index.write() as unit:
        return unit.webhooks.take(registry.now, registry.now + BUSY_SECONDS)


def deliver(registry: Registry, receiver: Receiver) -> int:
    """Sends a receiver its events, in order, until none is left, one fails, or it got ``AT_ONCE``; returns
    how many it got. The caller has taken the receiver, which is returned."""
    count = 0
    try:
        for delivery in _due(registry, receiver):
            outcome = registry.outside.sender.send(
                receiver.url, receiver.secret, delivery.event, delivery.body, registry.now
            )
            if not outcome.delivered:
                _record_failure(registry, receiver, delivery, outcome)
                break
            with registry.index.write() as unit:
                unit.webhooks.delivered(receiver.webhook, delivery.number, registry.now)
            count += 1
    finally:
        with registry.index.write() as unit:
            unit.webhooks.hold(receiver.webhook, registry.now)
    return count


def _due(registry: Registry, receiver: Receiver) -> Iterable[Delivery]:
    for _ in range(AT_ONCE):
        with registry.index.write() as unit:
            delivery = unit.webhooks.next_of(receiver.webhook, registry.now)
            if delivery is None:
                return
            unit.webhooks.hold(receiver.webhook, registry.now + BUSY_SECONDS)
        yield delivery


def _record_failure(
    registry: Registry, receiver: Receiver, delivery: Delivery, outcome: DeliveryOutcome
) -> None:
    """Has the event sent again later, or gives it up. Until the receiver answers well again, it gets one try
    for each delay, and not one for each event."""
    now = registry.now
    dead = now if now - delivery.at >= GIVEN_UP_DAYS * DAY else None
    _log.warning(
        "webhook %s: event %s was not delivered%s: %s",
        receiver.webhook,
        delivery.event,
        ", and is given up" if dead else "",
        outcome.said,
    )
    with registry.index.write() as unit:
        unit.webhooks.failed(
            receiver.webhook,
            delivery.number,
            outcome.said,
            due=now + _delay(delivery.tries),
            retry=now + _delay(receiver.failures),
            dead=dead,
        )


def _delay(failures: int) -> int:
    """Returns the seconds until the next try, a fifth more or less, so that receivers are not tried in
    step."""
    return round(DELAYS[min(failures, len(DELAYS) - 1)] * random.uniform(0.8, 1.2))


def _event(registry: Registry, kind: str, namespace: str, data: dict[str, str | int | None]) -> Event:
    present: dict[str, str | int | None] = {name: value for name, value in data.items() if value is not None}
    return Event(f"evt_{secrets.token_hex(16)}", kind, registry.now, namespace, present)


def _administered(unit: Unit, by: Token, webhook: str) -> tuple[WebhookRecord, str]:
    row = unit.webhooks.get(webhook) if _ID.fullmatch(webhook) else None
    if row is None or by.namespace not in (ANY, row[0].namespace):
        raise NotFound(f"webhook {webhook[:40]!r} does not exist", "see: cachesvc admin webhooks list")
    demand(by, Action.admin, row[0].namespace)
    return row
