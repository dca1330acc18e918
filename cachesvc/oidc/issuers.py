"""Get and keep the public keys of issuers, by their discovery document (OpenID Connect Discovery 1.0).

An issuer is asked only if a rule of an administrator names it. Its answers are bounded in time and in bytes,
and what it says beyond its keys is not used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cachesvc_client.http.connection import Pool
from cachesvc_client.http.origin import Origin, split_url
from cachesvc_client.http.timed import Clock
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, ProtocolMismatch, Unavailable

from .keys import PublicKey, read_keys

DISCOVERY = "/.well-known/openid-configuration"
FETCH_SECONDS = 2.0
"""Seconds in all for one document of an issuer."""
MAX_DOCUMENT_BYTES = 256 << 10
"""Bytes of a document of an issuer, at most."""
FRESH_SECONDS = 600.0
"""Seconds after which keys are read again, so that a key that the issuer withdrew ends."""
KEPT_SECONDS = 3600.0
"""Seconds for which keys count, at most, while their issuer cannot be reached."""
ROTATION_SECONDS = 60.0
"""Seconds between two looks for a key that is not known: strangers can ask for any."""
FAILURE_SECONDS = 10.0
"""Seconds after a failure in which an issuer is not asked again: a slow one holds up nobody else."""
MAX_ISSUERS = 64
"""Issuers whose keys are kept, at most."""


@dataclass(slots=True)
class _Known:
    """The keys of one issuer. Times are values of the clock; ``failure``: what the last try came to."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    keys: list[PublicKey] = field(default_factory=list)
    read: float | None = None
    tried: float | None = None
    failure: Unavailable | None = None


class Issuers:
    """The keys of issuers, for one process. Thread-safe: one thread at a time asks an issuer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._pool = Pool(FETCH_SECONDS)

    def keys(self, issuer: str, algorithm: str, key_id: str | None) -> list[PublicKey]:
        """Returns the issuer's keys that a token of this header may be signed with; perhaps none.

        Raises ``Unavailable`` with one line if no key is known and the issuer cannot be asked.
        """
        known = self._of(issuer)
        with known.lock:
            self._refresh(issuer, known, FRESH_SECONDS)
            fitting = [key for key in known.keys if key.fits(algorithm, key_id)]
            if not fitting:
                self._refresh(issuer, known, ROTATION_SECONDS)
                fitting = [key for key in known.keys if key.fits(algorithm, key_id)]
            if not known.keys and known.failure is not None:
                raise known.failure
            return fitting

    def _of(self, issuer: str) -> _Known:
        with self._lock:
            if issuer not in self._known and len(self._known) >= MAX_ISSUERS:
                self._known.pop(next(iter(self._known)))
            return self._known.setdefault(issuer, _Known())

    def _refresh(self, issuer: str, known: _Known, seconds: float) -> None:
        """Reads the keys if they are older than ``seconds`` and no try failed just now."""
        now = self._clock()
        if known.read is not None and now - known.read < seconds:
            return
        if known.failure is not None and known.tried is not None and now - known.tried < FAILURE_SECONDS:
            return
        try:
            known.keys = self._fetch(issuer)
            known.read, known.failure = self._clock(), None
        except CacheSvcError as error:
            known.failure = _unavailable(issuer, error)
            if known.read is not None and now - known.read > KEPT_SECONDS:
                known.keys, known.read = [], None
        known.tried = self._clock()

    def _fetch(self, issuer: str) -> list[PublicKey]:
        home = check_issuer(issuer)
        document = self._get(issuer.rstrip("/") + DISCOVERY, home)
        if document.get("issuer") != issuer:
            raise ProtocolMismatch(f"its discovery document is of {str(document.get('issuer'))[:120]!r}")
        keys = read_keys(self._get(str(document.get("jwks_uri", "")), home))
        if not keys:
            raise ProtocolMismatch("it has no public key that can be used")
        return keys

    def _get(self, url: str, home: Origin) -> dict[str, Any]:
        origin, path = split_url(url, "its URL")
        if origin.scheme != "https" and origin != home:
            raise InvalidRequest(f"{origin}: only https is allowed")
        clock = Clock(time.monotonic() + FETCH_SECONDS, FETCH_SECONDS)
        headers = {"Host": origin.netloc, "Accept": "application/json", "Accept-Encoding": "identity"}
        with self._pool.request(origin, "GET", path, headers, None, clock, reuse=False) as response:
            if response.status != 200:
                raise Unavailable(f"{origin}{path[:120]}: status {response.status}")
            body = response.body(MAX_DOCUMENT_BYTES)
        self._pool.clear()
        try:
            document = codec.parse_json(body, limit=MAX_DOCUMENT_BYTES, what="its document")
        except ValueError as error:
            raise ProtocolMismatch(str(error)) from None
        if not isinstance(document, dict):
            raise ProtocolMismatch(f"{origin}{path[:120]}: not a JSON object")
        return document


def check_issuer(issuer: str) -> Origin:
    """Returns the origin of an issuer. Raises ``InvalidRequest`` unless it is https, or http on loopback."""
    origin, _ = split_url(issuer, "issuer")
    if origin.scheme != "https" and not origin.loopback:
        raise InvalidRequest(f"issuer: {issuer[:120]!r} is plain HTTP", "https://…; http on loopback alone")
    return origin


def _unavailable(issuer: str, error: CacheSvcError) -> Unavailable:
    return Unavailable(
        f"issuer {issuer}: its keys cannot be read: {error.message}",
        f"the registry's operator: let the registry reach {issuer.rstrip('/')}{DISCOVERY} and its jwks_uri",
    )
