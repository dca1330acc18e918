"""Get and keep the public keys and the addresses of issuers, by their discovery document (OpenID Connect
Discovery 1.0).

An issuer is asked only if a rule of an administrator, or a setting, names it. Its answers are bounded in time
and in bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cachesvc_client.http.origin import Origin, split_url
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, ProtocolMismatch, Unavailable

from .documents import Documents, split_endpoint
from .keys import PublicKey, read_keys

DISCOVERY = "/.well-known/openid-configuration"
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


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where an issuer logs people in. ``names_itself``: its answers to a browser name it (RFC 9207).
    ``secret_in_form``: it takes a client's secret in the form alone, and not in a header."""

    authorization: str
    token: str
    names_itself: bool
    secret_in_form: bool


@dataclass(slots=True)
class _Known:
    """The keys and the document of one issuer. Times are values of the clock; ``failure``: what the last try
    came to."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    keys: list[PublicKey] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    read: float | None = None
    tried: float | None = None
    failure: Unavailable | None = None


class Issuers:
    """The keys of issuers, for one process. Thread-safe: one thread at a time asks an issuer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._documents = Documents()

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

    def endpoints(self, issuer: str) -> Endpoints:
        """Returns where the issuer logs people in. Raises ``Unavailable`` with one line if that is not known
        and the issuer cannot be asked, or does not say it."""
        known = self._of(issuer)
        with known.lock:
            self._refresh(issuer, known, FRESH_SECONDS)
            if not known.keys:
                raise known.failure or Unavailable(f"issuer {issuer}: nothing is known of it")
            try:
                return _endpoints(known.document, check_issuer(issuer))
            except CacheSvcError as error:
                raise Unavailable(
                    f"issuer {issuer}: its document names no place to log in: {error.message}",
                    f"the registry's operator: look at {issuer.rstrip('/')}{DISCOVERY}",
                ) from None

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
            known.document, known.keys = self._fetch(issuer)
            known.read, known.failure = self._clock(), None
        except CacheSvcError as error:
            known.failure = _unavailable(issuer, error)
            if known.read is not None and now - known.read > KEPT_SECONDS:
                known.keys, known.read = [], None
        known.tried = self._clock()

    def _fetch(self, issuer: str) -> tuple[dict[str, Any], list[PublicKey]]:
        home = check_issuer(issuer)
        document = self._documents.get(issuer.rstrip("/") + DISCOVERY, home)
        if document.get("issuer") != issuer:
            raise ProtocolMismatch(f"its discovery document is of {str(document.get('issuer'))[:120]!r}")
        keys = read_keys(self._documents.get(str(document.get("jwks_uri", "")), home))
        if not keys:
            raise ProtocolMismatch("it has no public key that can be used")
        return document, keys


def check_issuer(issuer: str) -> Origin:
    """Returns the origin of an issuer. Raises ``InvalidRequest`` unless it is https, or http on loopback."""
    origin, _ = split_url(issuer, "issuer")
    if origin.scheme != "https" and not origin.loopback:
        raise InvalidRequest(f"issuer: {issuer[:120]!r} is plain HTTP", "https://…; http on loopback alone")
    return origin


def _endpoints(document: dict[str, Any], home: Origin) -> Endpoints:
    urls = [document.get(f"{name}_endpoint") for name in ("authorization", "token")]
    for url in urls:
        split_endpoint(str(url), home)
    methods = document.get("token_endpoint_auth_methods_supported")
    known = methods if isinstance(methods, list) else []
    return Endpoints(
        str(urls[0]),
        str(urls[1]),
        document.get("authorization_response_iss_parameter_supported") is True,
        "client_secret_post" in known and "client_secret_basic" not in known,
    )


def _unavailable(issuer: str, error: CacheSvcError) -> Unavailable:
    return Unavailable(
        f"issuer {issuer}: its keys cannot be read: {error.message}",
        f"the registry's operator: let the registry reach {issuer.rstrip('/')}{DISCOVERY} and its jwks_uri",
    )
