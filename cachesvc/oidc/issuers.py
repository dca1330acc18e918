"""Get and keep the public keys and the addresses of issuers, by their discovery document (OpenID Connect
Discovery 1.0).

An issuer is asked only if a rule of an administrator, or a setting, names it. Its answers are bounded in time
and in bytes, and read by a thread of its own: anyone who waits for them has no place that others need. What
came of it is in the log; who shows a token learns only that the keys cannot be read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Waited
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cachesvc.outside import Destinations
from cachesvc_client.http.origin import Origin, split_url
from cachesvc_client.wire.errors import (
    CacheSvcError,
    InvalidRequest,
    ProtocolMismatch,
    Unavailable,
    Untrusted,
)

from .documents import FETCH_SECONDS, Documents, split_endpoint
from .keys import PublicKey, read_keys

DISCOVERY = "/.well-known/openid-configuration"
FRESH_SECONDS = 600.0
"""Seconds after which keys are read again, so that a key that the issuer withdrew ends."""
KEPT_SECONDS = 3600.0
"""Seconds for which keys count, at most, while their issuer cannot be reached."""
ROTATION_SECONDS = 60.0
"""Seconds between two searches for a key that is not known: strangers can ask for any."""
FAILURE_SECONDS = 10.0
"""Seconds after a failure in which an issuer is not asked again: a slow one holds up no one else."""
MAX_ISSUERS = 256
"""Issuers whose keys are kept, at most."""
SHARE = 8
"""Issuers that are asked at once for the rules of one namespace."""
MAX_FETCHES = 128
"""Issuers that are asked at once, at most."""
WAIT_SECONDS = 2 * FETCH_SECONDS + 1.0
"""Seconds that anybody waits for the two documents of an issuer, at most."""

_log = logging.getLogger("cachesvc.oidc")


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
    """The keys and the document of one issuer. Times are values of the clock. ``fetch``: what is under
    way."""

    keys: list[PublicKey] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    read: float | None = None
    tried: float | None = None
    failed: bool = False
    fetch: Future[None] | None = None

    def fitting(self, algorithm: str, key_id: str | None) -> list[PublicKey]:
        """Returns the keys that a token of this header may be signed with."""
        return [key for key in self.keys if key.fits(algorithm, key_id)]


class Issuers:
    """The keys of issuers, for one process. Thread-safe.

    ``destinations``: the addresses at which issuers are asked. ``own``: the issuer that the settings name,
    which may have any address.
    """

    def __init__(
        self,
        destinations: Destinations | None = None,
        own: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._destinations, self._own, self._clock = destinations or Destinations(), own, clock
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._asking: Counter[str] = Counter()

    def check(self, issuer: str) -> Origin:
        """Returns the origin of an issuer. Raises ``InvalidRequest`` for one that is never asked: not https
        (or http on loopback), or written as an address that is not permitted."""
        origin = check_issuer(issuer)
        try:
            if issuer != self._own:
                self._destinations.check(origin)
        except Untrusted as error:
            raise InvalidRequest(f"issuer: {error.message}", error.hint) from None
        return origin

    def prepare(
        self, issuer: str, shares: Sequence[str], algorithm: str = "", key_id: str | None = None
    ) -> Future[None] | None:
        """Has the issuer asked if what is known of it does not do for a token of this header, and returns
        what to wait for; ``None`` if that is nothing. The future never fails. ``shares``: the namespaces
        whose rules name the issuer; each has ``SHARE`` issuers asked at once.
        """
        with self._lock:
            known = self._of(issuer)
            unknown = bool(algorithm) and not known.fitting(algorithm, key_id)
            if known.fetch is None and self._is_due(known, ROTATION_SECONDS if unknown else FRESH_SECONDS):
                share = next((one for one in shares if self._asking[one] < SHARE), None)
                if share is not None and self._asking.total() < MAX_FETCHES:
                    self._start(issuer, known, share)
            return known.fetch

    def wait(self, issuer: str, algorithm: str = "", key_id: str | None = None) -> None:
        """Does what :meth:`prepare` does for the issuer of the settings, and waits for it."""
        fetch = self.prepare(issuer, ("",), algorithm, key_id)
        if fetch is not None:
            with suppress(Waited):
                fetch.result(WAIT_SECONDS)

    def keys(self, issuer: str, algorithm: str, key_id: str | None) -> list[PublicKey]:
        """Returns the issuer's keys that a token of this header may be signed with, by what is known; perhaps
        none. Raises ``Unavailable`` with one line if nothing is known."""
        with self._lock:
            known = self._of(issuer)
            if known.read is None:
                raise _unavailable(issuer)
            return known.fitting(algorithm, key_id)

    def check_known(self, issuer: str) -> None:
        """Raises ``Unavailable`` with one line if no keys of an issuer are known."""
        with self._lock:
            if self._of(issuer).read is None:
                raise _unavailable(issuer)

    def endpoints(self, issuer: str) -> Endpoints:
        """Returns where the issuer of the settings logs people in. Raises ``Unavailable`` with one line if
        that is not known and the issuer cannot be asked, or does not say it."""
        self.wait(issuer)
        with self._lock:
            known = self._of(issuer)
            if known.read is None:
                raise _unavailable(issuer)
            return _endpoints_of(issuer, known.document)

    def probe(self, issuer: str) -> Endpoints:
        """Asks an issuer now, for its operator. Raises ``Unavailable`` that says what came of it."""
        try:
            document, _ = self._fetch(issuer)
        except CacheSvcError as error:
            raise _unavailable(issuer, f": {error.message}") from None
        return _endpoints_of(issuer, document)

    def _of(self, issuer: str) -> _Known:
        if issuer not in self._known and len(self._known) >= MAX_ISSUERS:
            idle = [name for name, one in self._known.items() if one.fetch is None]
            without = (name for name in idle if self._known[name].read is None)
            self._known.pop(next(without, None) or next(iter(idle or self._known)))
        return self._known.setdefault(issuer, _Known())

    def _is_due(self, known: _Known, seconds: float) -> bool:
        """Returns whether keys are older than ``seconds``, and no try failed just now."""
        now = self._clock()
        if known.read is not None and now - known.read < seconds:
            return False
        return not (known.failed and known.tried is not None and now - known.tried < FAILURE_SECONDS)

    def _start(self, issuer: str, known: _Known, share: str) -> None:
        fetch: Future[None] = Future()
        known.fetch = fetch
        self._asking[share] += 1

        def run() -> None:
            try:
                self._refresh(issuer, known)
            finally:
                with self._lock:
                    known.fetch = None
                    self._asking[share] -= 1
                fetch.set_result(None)

        threading.Thread(target=run, name="issuer", daemon=True).start()

    def _refresh(self, issuer: str, known: _Known) -> None:
        try:
            document, keys = self._fetch(issuer)
        except CacheSvcError as error:
            _log.warning("issuer %s: its keys cannot be read: %s", issuer, error)
            with self._lock:
                known.failed, known.tried = True, self._clock()
                if known.read is not None and known.tried - known.read > KEPT_SECONDS:
                    known.keys, known.document, known.read = [], {}, None
            return
        with self._lock:
            known.keys, known.document = keys, document if issuer == self._own else {}
            known.failed, known.read = False, self._clock()

    def _fetch(self, issuer: str) -> tuple[dict[str, Any], list[PublicKey]]:
        home = check_issuer(issuer)
        documents = Documents(None if issuer == self._own else self._destinations)
        document = documents.get(issuer.rstrip("/") + DISCOVERY, home)
        if document.get("issuer") != issuer:
            raise ProtocolMismatch(f"its discovery document is of {str(document.get('issuer'))[:120]!r}")
        keys = read_keys(documents.get(str(document.get("jwks_uri", "")), home))
        if not keys:
            raise ProtocolMismatch("it has no public key that can be used")
        return document, keys


def check_issuer(issuer: str) -> Origin:
    """Returns the origin of an issuer. Raises ``InvalidRequest`` unless it is https, or http on loopback."""
    origin, _ = split_url(issuer, "issuer")
    if origin.scheme != "https" and not origin.loopback:
        raise InvalidRequest(f"issuer: {issuer[:120]!r} is plain HTTP", "https://…; http on loopback alone")
    return origin


def _endpoints_of(issuer: str, document: dict[str, Any]) -> Endpoints:
    try:
        return _endpoints(document, check_issuer(issuer))
    except CacheSvcError as error:
        raise Unavailable(
            f"issuer {issuer}: its document names no place to log in: {error.message}",
            f"the registry's operator: look at {issuer.rstrip('/')}{DISCOVERY}",
        ) from None


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


def _unavailable(issuer: str, why: str = "") -> Unavailable:
    return Unavailable(
        f"issuer {issuer}: its keys cannot be read{why}",
        "the registry's operator: the log says why; let the registry reach "
        f"{issuer.rstrip('/')}{DISCOVERY} and its jwks_uri",
    )
