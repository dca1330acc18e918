"""Sends requests to one repository of an OCI registry: its challenges, its retries, and its errors in
words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from cachesvc_client import __version__
from cachesvc_client.http.connection import Body, Pool, Response
from cachesvc_client.http.downloads import MAX_REDIRECTS, follow_redirect
from cachesvc_client.http.links import LinkPolicy
from cachesvc_client.http.origin import Network, Origin
from cachesvc_client.http.timed import Clock
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Forbidden,
    NotFound,
    ProtocolMismatch,
    StorageFull,
    TooLarge,
    TooMany,
    Unavailable,
    printable,
)

from .authorization import Authorization
from .credentials import CredentialSource

CALL_SECONDS = 60.0
"""Seconds within which a small request must be answered."""
STALL_SECONDS = 60.0
"""Seconds without progress that end a transfer."""
CONNECT_SECONDS = 10.0
"""Seconds within which a connection must be made."""
RETRIES = 2
"""Number of times that a request is sent again where that is safe, or a download goes on without progress."""
REDIRECTS = (301, 302, 303, 307, 308)
"""Statuses that name another address."""
_MAX_ERROR_BYTES = 64 << 10
"""Largest number of bytes of an answer that says what is wrong, or says nothing."""


@dataclass(frozen=True, slots=True)
class Request:
    """Describes a request. ``path``: below the repository, or from the root on.

    ``accept``: statuses that are answers; another one is raised as its error. ``limit``: bytes of the answer.
    ``what``: begins messages. ``transfer``: it fails only when no more bytes move. ``repeat``: it may be sent
    twice.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    accept: tuple[int, ...] = (200,)
    limit: int = _MAX_ERROR_BYTES
    what: str = ""
    transfer: bool = False
    repeat: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds a whole answer; the body is in memory."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Calls:
    """Calls one repository. Thread-safe.

    ``origin``: where the registry is. ``allow_links``: networks to which its redirects and realms may lead
    although they are not public.
    """

    def __init__(
        self, origin: Origin, repository: str, source: CredentialSource, allow_links: tuple[Network, ...] = ()
    ) -> None:
        self.where = f"{origin.netloc}/{repository}"
        self.origin, self.root = origin, f"/v2/{repository}/"
        self._links = LinkPolicy(origin, allow_links)
        self._pool = Pool(CONNECT_SECONDS, self._links)
        self._authorization = Authorization(origin, source, self._pool, self._links)

    def close(self) -> None:
        """Closes idle connections."""
        self._pool.clear()

    def call(self, request: Request) -> Answer:
        """Makes a request, and makes it again where that is safe and it failed for a while. Raises the
        error of an answer, and ``Unavailable`` without one."""
        failures = 0
        while True:
            try:
                return self._call_once(request)
            except CacheSvcError as error:
                failures += 1
                if not (request.repeat and error.retry and failures <= RETRIES):
                    raise
                time.sleep(0.1 * 2**failures)

    @contextmanager
    def download(self, path: str, headers: Mapping[str, str], what: str) -> Iterator[Response]:
        """Sends one GET for bytes, and yields the answer of status 200 or 206. Redirects lead to the
        registry's store, and get no credentials."""
        request = Request("GET", path, headers, what=what, transfer=True)
        with self._open(request) as response:
            if response.status in (200, 206):
                yield response
                return
            location = self._redirected(response, request)
        origin, path = follow_redirect(self.origin, self._path(path), location)
        for _ in range(MAX_REDIRECTS):
            self._links.check_scheme(origin)
            sent = {"Accept-Encoding": "identity", "Host": origin.netloc, **headers}
            clock = Clock(None, STALL_SECONDS)
            with (
                _hinted(),
                self._pool.request(origin, "GET", path, sent, None, clock, reuse=True) as response,
            ):
                if response.status in (200, 206):
                    yield response
                    return
                location = self._redirected(response, request)
            origin, path = follow_redirect(origin, path, location)
        raise Unavailable(f"{self.where}: more than {MAX_REDIRECTS} redirects")

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else self.root + path

    def _call_once(self, request: Request) -> Answer:
        with self._open(request) as response:
            if response.status not in request.accept:
                raise self._error(response, request)
            try:
                return Answer(response.status, response.headers, response.body(request.limit))
            except TooLarge:
                what = request.what or self.where
                raise TooLarge(f"{what}: an answer of more than the {request.limit} bytes allowed") from None

    @contextmanager
    def _open(self, request: Request) -> Iterator[Response]:
        """Sends a request, with the answer to the registry's challenge if it sends one."""
        clock = Clock(None if request.transfer else time.monotonic() + CALL_SECONDS, STALL_SECONDS)
        path, reuse = self._path(request.path), request.method in ("GET", "HEAD")
        for attempt in range(2):
            sent = {
                "User-Agent": f"cachesvc-client/{__version__}",
                "Accept-Encoding": "identity",
                "Host": self.origin.netloc,
                **request.headers,
            }
            if self._authorization.header:
                sent["Authorization"] = self._authorization.header
            with (
                _hinted(),
                self._pool.request(
                    self.origin, request.method, path, sent, request.body, clock, reuse=reuse
                ) as response,
            ):
                if response.status != 401 or attempt:
                    yield response
                    return
                challenge = response.headers.get("WWW-Authenticate")
                response.body(_MAX_ERROR_BYTES)
            self._authorization.answer(challenge)

    def _redirected(self, response: Response, request: Request) -> str | None:
        """Returns where an answer leads. Raises its error if it leads nowhere."""
        if response.status not in REDIRECTS:
            raise self._error(response, request)
        return response.headers.get("Location")

    def _error(self, response: Response, request: Request) -> CacheSvcError:
        status, what = response.status, request.what or self.where
        said = _message(response.body(_MAX_ERROR_BYTES))
        if status == 401:
            return self._authorization.refusal()
        text = f"{what}: {request.method} was refused with status {status}{said}"
        by_status: dict[int, Callable[[], CacheSvcError]] = {
            403: lambda: Forbidden(text, "the account may not do this in that repository"),
            404: lambda: NotFound(f"{what}: it is not there{said}", "is the reference right?"),
            413: lambda: TooLarge(text, "the registry's limit"),
            429: lambda: TooMany(text, "try again later"),
            507: lambda: StorageFull(text, "make room in the registry"),
        }
        if status in by_status:
            return by_status[status]()
        if status >= 500 or status in (408, 425):
            return Unavailable(text, "try again, or look into the registry's log")
        return ProtocolMismatch(text, "is it a registry of OCI images?")


def _message(body: bytes) -> str:
    """Returns the first error of an answer, printable and short."""
    try:
        error = codec.parse_json(body, limit=_MAX_ERROR_BYTES, what="error")["errors"][0]
        text = f"{error['code']}: {error.get('message', '')}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""
    return f" ({printable(text[:200])})"


@contextmanager
def _hinted() -> Iterator[None]:
    """Raises errors of the connection with a hint for a registry of images."""
    try:
        yield
    except CacheSvcError as error:
        if "CACHESVC_URL" in error.hint:
            raise type(error)(error.message, "is the registry running, and the reference right?") from None
        raise
