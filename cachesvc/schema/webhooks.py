"""Defines webhooks, version 1: what a registry tells the receivers that an administrator names, and how.

A registry sends an event as the body of a POST, signed as Standard Webhooks 1.0 has it
(https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md). It sends an
event again until a receiver has answered it with a status of 200 to 299, so a receiver may get one twice:
``id`` tells. Readers ignore members that they do not know: later versions of the registry may add some.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field

from cachesvc_client.wire.names import Namespace

EVENT_FORMAT = "cachesvc-event/1"
"""Stands in every event, with the version of its schema."""
PUBLISHED = "revision.published"
WITHHELD = "revision.withheld"
RELEASED = "revision.released"
COLD = "revision.cold"
TOKEN_EXPIRING = "token.expiring"
TEST = "webhook.test"
EVENTS = {
    PUBLISHED: "a revision became the head of its entry",
    WITHHELD: "a revision is not offered any more: to anybody, or in one environment",
    RELEASED: "a revision is offered again",
    COLD: "services of an environment installed a revision and compiled all the same, for the first time "
    "since it was used there",
    TOKEN_EXPIRING: "a token expires within 7 days",
}
"""The events that a webhook can ask for. ``webhook.test`` is sent on request alone."""
SECRET_PREFIX = "whsec_"
"""Beginning of a webhook's secret; base64 of the key follows."""
MAX_URL = 1000
"""Characters of a URL, at most."""
MAX_LABEL = 200
"""Characters of a label, at most."""


@dataclass(frozen=True, slots=True)
class Event:
    """Is the body of a delivery. ``at``: when it happened, in seconds of UTC. ``namespace``: of what it
    happened to; ``*`` for a token of every namespace. ``data``: by ``type``; digests, names, ids, and no
    secret."""

    id: str
    type: str
    at: int
    namespace: str
    data: dict[str, str | int | None]
    format: str = EVENT_FORMAT


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """Asks for a new webhook. ``namespace``: whose events it gets; ``*``: those of all. ``events``: which;
    empty: all of them."""

    namespace: str
    url: str
    events: tuple[str, ...] = ()
    label: str = ""

    def __post_init__(self) -> None:
        if self.namespace != "*":
            Namespace(self.namespace)
        if len(self.url) > MAX_URL or not self.url.isprintable():
            raise ValueError(f"url: at most {MAX_URL} printable characters")
        for event in self.events:
            if event not in EVENTS:
                raise ValueError(f"events: {event[:40]!r}; known: {', '.join(EVENTS)}")
        if len(set(self.events)) != len(self.events):
            raise ValueError("events: each once")
        if len(self.label) > MAX_LABEL or not self.label.isprintable():
            raise ValueError(f"label: at most {MAX_LABEL} printable characters")


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """Describes a webhook. ``secret``: in the answer to its creation only. ``waiting``: events that its
    receiver has not got yet, the oldest of ``oldest`` (seconds of UTC). ``dead``: events that were given up.
    ``failures``: failed tries since the last success. ``retry``: when the next try is, after a failure."""

    webhook: str
    namespace: str
    url: str
    events: tuple[str, ...]
    label: str
    created: int
    waiting: int = 0
    oldest: int | None = None
    dead: int = 0
    failures: int = 0
    retry: int | None = None
    last_delivered: int | None = None
    last_error: str = ""
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """Says what a delivery came to. ``said``: the status of the answer, or what failed."""

    delivered: bool
    said: str
    seconds: float


def signature(secret: str, event: str, timestamp: int, body: bytes) -> str:
    """Returns the header ``webhook-signature`` of a delivery: HMAC-SHA256 over id, time and body. Raises
    ``ValueError`` for a secret that is none."""
    if not secret.startswith(SECRET_PREFIX):
        raise ValueError(f"a webhook's secret begins with {SECRET_PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a webhook's secret is base64 after its beginning") from None
    digest = hmac.new(key, f"{event}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()
