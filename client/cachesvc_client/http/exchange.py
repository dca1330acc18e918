"""Makes one call to a registry: its deadline, its retries, and the check that a registry of this version
answered."""

from __future__ import annotations

import math
import os
import platform
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .. import __version__, spans
from ..wire import codec
from ..wire.digest import Digest
from ..wire.errors import (
    CacheSvcError,
    InvalidRequest,
    ProtocolMismatch,
    TooLarge,
    Unavailable,
    from_wire,
)
from ..wire.requests.protocol import API_HEADER, API_VERSION
from .breaker import BREAKER_FAILURES, Breaker
from .connection import Body, Pool
from .links import LinkPolicy
from .origin import Network, Origin, split_url, without_secrets
from .proxy import proxy_for
from .timed import Clock

MAX_ANSWER_BYTES = 8 << 20
"""Largest number of bytes of an answer."""
MAX_ERROR_BYTES = 64 << 10
"""Largest number of bytes of an error answer."""
UPLOAD_STALL = 60.0
"""Seconds without progress that end an upload: the other side may be writing gigabytes to a slow store."""
MAX_RETRY_AFTER = 5.0
"""Seconds of a ``Retry-After`` that a client waits at most."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds a whole answer; the body is in memory."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """Calls one registry. Thread-safe; after a fork the child opens connections of its own.

    ``registry.Remote`` describes the parameters and the errors.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout: float,
        connect_timeout: float,
        retries: int,
        allow_links: Sequence[Network] = (),
        paced: bool = False,
    ) -> None:
        self.url = url.rstrip("/")
        self.origin, self._prefix = split_url(self.url, "the registry's URL")
        self.replace_token(token)
        self.timeout = timeout
        self.retries = retries
        self._connect_timeout = connect_timeout
        self._breaker_failures = math.inf if paced else BREAKER_FAILURES
        self.links = LinkPolicy(self.origin, allow_links)
        self._pid = 0
        self._reset_after_fork()
        self._agent = f"cachesvc-client/{__version__} python/{platform.python_version()}"

    def replace_token(self, token: str | None) -> None:
        """Sends another token from the next call on. Raises ``InvalidRequest`` for a malformed token, and
        for one that would go over plain HTTP to another machine."""
        if token and self.origin.scheme == "http" and not self.origin.loopback:
            raise InvalidRequest(
                f"{self.origin}: a token is not sent over plain HTTP to another machine",
                "use https://, or no token",
            )
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidRequest("the token: not printable ASCII without spaces", "check CACHESVC_TOKEN")
        self.token = token

    @property
    def has_token(self) -> bool:
        """Returns whether calls carry a token."""
        return bool(self.token)

    @property
    def connections(self) -> Pool:
        """Returns the pool of this process."""
        self._reset_after_fork()
        return self._pool

    def breaker(self, origin: Origin) -> Breaker:
        """Returns the breaker that counts the failures of this origin."""
        self._reset_after_fork()
        return self._breakers.setdefault(origin, Breaker(self._breaker_failures))

    @property
    def identity(self) -> Digest:
        """Returns the digest of registry and token, for data that only clients with the same rights may
        share."""
        return Digest.of(codec.canonical([self.url, self.token]))

    def call(
        self,
        method: str,
        path: str,
        body: Body | None,
        *,
        deadline: float | None,
        idempotent: bool,
        limit: int = MAX_ANSWER_BYTES,
        length: int | None = None,
        transfer: bool = False,
    ) -> Answer:
        """Makes one request to the registry itself, and tries again where the request is ``idempotent``.

        ``limit``: bytes of the answer. ``length``: bytes of a ``body`` that is made piece by piece.
        ``transfer``: without a ``deadline`` the call fails only when no more bytes move. Raises the
        ``CacheSvcError`` of the answer, and ``Unavailable`` if there is no answer in time.
        """
        if transfer:
            clock = Clock(deadline, max(self.timeout, UPLOAD_STALL))
        else:
            clock = Clock(time.monotonic() + self.timeout if deadline is None else deadline, self.timeout)
        breaker, failures = self.breaker(self.origin), 0
        while True:
            answer = None
            try:
                with breaker.guard(self.origin):
                    answer = self._send_once(method, path, body, clock, idempotent, limit, length)
                    self.check(answer)
                    return answer
            except CacheSvcError as error:
                failures += 1
                wait = _retry_after(answer.headers) if answer else 0.0
                may_retry = idempotent and error.retry and failures <= self.retries
                if not may_retry or breaker.open or not self.pause(failures, wait, clock.deadline):
                    raise

    def headers(self, origin: Origin, *, token: bool) -> dict[str, str]:
        """Makes a request's headers. Only the registry's own origin gets the token."""
        headers = {"User-Agent": self._agent, "Accept-Encoding": "identity", "Host": origin.netloc}
        if origin == self.origin:
            headers[API_HEADER] = str(API_VERSION)
            if self.token and token:
                headers["Authorization"] = f"Bearer {self.token}"
            if "opentelemetry.trace" in sys.modules or spans.VARIABLE in os.environ:
                parent = spans.traceparent()
                if parent is not None:
                    headers["traceparent"] = parent
        return headers

    def check(self, answer: Answer) -> None:
        """Raises the error of an answer: the registry's own error, that of another version, or
        ``ProtocolMismatch`` where no registry answered."""
        status, version = answer.status, answer.headers.get(API_HEADER)
        if 300 <= status < 400:
            target = quote_header(answer.headers.get("Location"))
            raise ProtocolMismatch(
                f"{self.origin}: redirects to {target}; a token does not follow",
                "set CACHESVC_URL to the registry's own address",
            )
        proxy = proxy_for(self.origin) if status == 407 else None
        if proxy is not None:
            raise proxy.refusal(status, str(self.origin))
        if version is None:
            if status == TooLarge.status:
                raise TooLarge(
                    f"{self.origin}: a proxy refuses bodies of this size (status {status})",
                    "raise its limit: client_max_body_size of nginx, or what it is called there",
                )
            error = from_wire(status, None)  # a proxy's or a load balancer's, or no registry at all
            if status in (502, 503, 504):
                raise Unavailable(
                    f"{self.origin}: a proxy gets no answer of the registry (status {status})",
                    "is the registry running, and does the proxy wait long enough for its answers?",
                )
            if not error.retry:
                raise ProtocolMismatch(
                    f"{self.origin}: not a cachesvc registry (status {status}, no {API_HEADER} header)",
                    "check CACHESVC_URL",
                )
        elif version != str(API_VERSION):
            older = version.isdigit() and int(version) < API_VERSION
            raise ProtocolMismatch(
                f"{self.origin}: the registry speaks API {version[:20]}, this client {API_VERSION}",
                "upgrade the registry" if older else "upgrade cachesvc-client",
            )
        if status >= 400:
            try:
                body = codec.parse_json(answer.body, limit=MAX_ERROR_BYTES, what="the error")
            except ValueError:
                body = None
            raise from_wire(status, body)

    def locate(self, pack_url: str) -> tuple[Origin, str]:
        """Splits a pack's URL, or a path of the registry. Raises ``ProtocolMismatch``."""
        if pack_url.startswith("/") and not pack_url.startswith("//"):
            return self.origin, self._prefix + pack_url
        try:
            return split_url(pack_url, "the pack's URL")
        except InvalidRequest as error:
            raise ProtocolMismatch(f"{self.origin}: {error.message}", error.hint) from None

    def pause(self, failures: int, retry_after: float, deadline: float | None) -> bool:
        """Waits before the next try; returns false if the deadline does not leave the time. ``retry_after``:
        seconds that the registry asks for."""
        pause = max(min(retry_after, MAX_RETRY_AFTER), 0.1 * 2**failures * random.uniform(0.5, 1.0))
        if deadline is not None and time.monotonic() + pause >= deadline:
            return False
        time.sleep(pause)
        return True

    def _reset_after_fork(self) -> None:
        """Makes connections and breakers for this process: a forked child shares neither connections nor
        locks with its parent."""
        if self._pid != os.getpid():
            self._pool = Pool(self._connect_timeout, self.links)
            self._breakers: dict[Origin, Breaker] = {}
            self._pid = os.getpid()  # last: another thread may look at it meanwhile

    def _send_once(
        self,
        method: str,
        path: str,
        body: Body | None,
        clock: Clock,
        idempotent: bool,
        limit: int,
        length: int | None,
    ) -> Answer:
        headers = self.headers(self.origin, token=True)
        if body is not None:
            headers["Content-Type"] = "application/octet-stream" if callable(body) else "application/json"
            headers["Content-Length"] = str(len(body) if isinstance(body, bytes) else length)
        # A connection that lay idle may have been closed by the other side: only for what may be sent twice.
        with self.connections.request(
            self.origin, method, self._prefix + path, headers, body, clock, reuse=idempotent
        ) as response:
            limit = limit if response.status < 400 else MAX_ERROR_BYTES
            return Answer(response.status, response.headers, response.body(limit))


def _retry_after(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "") or ""
    return float(text) if text.isdigit() and len(text) < 7 else 0.0


def quote_header(text: str | None) -> str:
    """Returns a header's value for a message, cut short and without what may be a secret in a URL."""
    return "nothing" if text is None else ascii(without_secrets(text)[:120])
