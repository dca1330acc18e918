"""Send one event to one receiver: signed, to permitted addresses alone, in bounded time."""

from __future__ import annotations

import time

import cachesvc
from cachesvc.outside import Destinations
from cachesvc.schema.webhooks import DeliveryOutcome, signature
from cachesvc_client.http.connection import Pool
from cachesvc_client.http.origin import Origin, split_url
from cachesvc_client.http.timed import Clock
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, Untrusted

SECONDS = 10.0
"""Seconds that a delivery may take in all, from the connection to the head of the answer."""
MAX_SAID = 300
"""Characters of what a delivery came to."""


class Sender:
    """Sends events. Thread-safe.

    ``destinations``: the addresses to which it connects. ``plain_http``: sends over ``http://`` too.
    """

    def __init__(self, destinations: Destinations | None = None, *, plain_http: bool = False) -> None:
        self._destinations, self._plain_http = destinations or Destinations(), plain_http

    def check(self, url: str) -> Origin:
        """Returns the origin of a receiver. Raises ``InvalidRequest`` for a URL to which nothing is sent: not
        HTTPS, or written as an address that is not public. A name is looked up at each delivery."""
        origin, _ = split_url(url, "url")
        if origin.scheme != "https" and not self._plain_http:
            raise InvalidRequest(
                "url: plain HTTP", "https://…; the operator allows http by the setting webhook_plain_http"
            )
        try:
            self._destinations.check(origin)
        except Untrusted as error:
            raise InvalidRequest(f"url: {error.message}", error.hint) from None
        return origin

    def send(self, url: str, secret: str, event: str, body: bytes, now: int) -> DeliveryOutcome:
        """Sends an event, and returns what came of it: only a status of 200 to 299 is a success. Redirects
        are not followed, and the body of an answer is not read. ``now``: seconds of UTC, which are signed."""
        began = time.monotonic()
        try:
            delivered, said = self._post(url, secret, event, body, now)
        except CacheSvcError as error:
            delivered, said = False, error.message
        except UnicodeError:  # a name that is too long, or has an empty part: the look-up encodes it
            delivered, said = False, "url: its host is not a name"
        return DeliveryOutcome(delivered, said[:MAX_SAID], round(time.monotonic() - began, 3))

    def _post(self, url: str, secret: str, event: str, body: bytes, now: int) -> tuple[bool, str]:
        origin = self.check(url)
        headers = {
            "Host": origin.netloc,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "User-Agent": f"cachesvc/{cachesvc.__version__}",
            "webhook-id": event,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(secret, event, now, body),
            "Connection": "close",
        }
        clock = Clock(time.monotonic() + SECONDS, SECONDS)
        path = split_url(url, "url")[1]
        pool = Pool(SECONDS, self._destinations)
        with pool.request(origin, "POST", path, headers, body, clock, reuse=False) as response:
            status = response.status
        pool.clear()
        if 300 <= status < 400:
            return False, f"status {status}: redirects are not followed"
        return 200 <= status < 300, f"status {status}"
