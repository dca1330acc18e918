"""Ask an issuer for a document by HTTP, within bounds of time and bytes."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

from cachesvc.outside import Destinations
from cachesvc_client.http.connection import Pool
from cachesvc_client.http.origin import Origin, split_url
from cachesvc_client.http.timed import Clock
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import InvalidRequest, ProtocolMismatch, Unavailable

FETCH_SECONDS = 2.0
"""Seconds in all for one document of an issuer."""
LOGIN_SECONDS = 5.0
"""Seconds in all for the answer to a code: a provider may ask others before it gives one."""
MAX_DOCUMENT_BYTES = 256 << 10
"""Bytes of a document of an issuer, at most."""


class Documents:
    """Asks issuers. Follows no redirect, and asks by HTTPS, or an issuer on loopback by HTTP. Thread-safe.

    ``destinations``: the addresses to which it connects; ``None`` for an issuer that the operator named.
    """

    def __init__(self, destinations: Destinations | None) -> None:
        self._pool = Pool(FETCH_SECONDS, destinations)

    def get(self, url: str, home: Origin) -> dict[str, Any]:
        """Returns the document at ``url``. ``home``: the issuer's origin. Raises ``CacheSvcError``."""
        return self._ask("GET", url, home, {}, None, FETCH_SECONDS)[1]

    def post(
        self, url: str, home: Origin, form: dict[str, str], headers: dict[str, str]
    ) -> tuple[int, dict[str, Any]]:
        """Sends a form, and returns the status and the document of the answer. Raises ``CacheSvcError``."""
        headers = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        return self._ask("POST", url, home, headers, urlencode(form).encode(), LOGIN_SECONDS)

    def _ask(
        self, method: str, url: str, home: Origin, headers: dict[str, str], body: bytes | None, seconds: float
    ) -> tuple[int, dict[str, Any]]:
        origin, path = split_endpoint(url, home)
        clock = Clock(time.monotonic() + seconds, seconds)
        headers = {
            "Host": origin.netloc,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            **headers,
        }
        with self._pool.request(origin, method, path, headers, body, clock, reuse=False) as response:
            status = response.status
            if status >= 500 or (method == "GET" and status != 200):
                raise Unavailable(f"{origin}{path[:120]}: status {status}")
            data = response.body(MAX_DOCUMENT_BYTES)
        self._pool.clear()
        try:
            document = codec.parse_json(data, limit=MAX_DOCUMENT_BYTES, what="its document")
        except ValueError as error:
            raise ProtocolMismatch(str(error)) from None
        if not isinstance(document, dict):
            raise ProtocolMismatch(f"{origin}{path[:120]}: not a JSON object")
        return status, document


def split_endpoint(url: str, home: Origin) -> tuple[Origin, str]:
    """Returns the origin and the path of an address that an issuer names. Raises ``InvalidRequest`` unless it
    is https, or of the issuer's own origin."""
    origin, path = split_url(url, "its URL")
    if origin.scheme != "https" and origin != home:
        raise InvalidRequest(f"{origin}: only https is allowed")
    return origin, path
