"""HTTP to a registry: deadlines, retries, ranges, a breaker.

Everything that goes wrong leaves as a ``CacheSvcError``; no socket, TLS or HTTP error does. The
registry is not trusted here: answers are bounded before they are parsed, and the token goes to the
registry's own origin only, over TLS or loopback.

Standard library only: a service image gets no HTTP package from us.
"""

from __future__ import annotations

import email.utils
import itertools
import logging
import os
import platform
import random
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from . import __version__
from .bundle.file import bundle_head
from .transport import CHUNK, Body, Breaker, Clock, Origin, Pool, Response, split_url
from .wire import codec
from .wire.claims import ClaimAnswer, ClaimRef, ClaimRelease, ClaimRequest
from .wire.digest import Digest
from .wire.errors import (
    CacheSvcError,
    ClaimLost,
    Corrupt,
    InvalidRequest,
    NotFound,
    ProtocolMismatch,
    StorageFull,
    Unavailable,
    Untrusted,
    from_wire,
)
from .wire.names import Name, Namespace
from .wire.protocol import (
    API_HEADER,
    API_VERSION,
    BundleRequest,
    CommitAnswer,
    CommitRequest,
    EntrySummary,
    InfoAnswer,
    NameSummary,
    ReportAnswer,
    ReportRequest,
    ResolveAnswer,
    ResolvedRevision,
    ResolveRequest,
    StoredAnswer,
    TokenAnswer,
    TokenRequest,
    UploadAnswer,
    UploadRequest,
    WhoAmI,
    pack_path,
)
from .wire.records import PackRecord

_log = logging.getLogger("cachesvc")
R = TypeVar("R")

MAX_ANSWER_BYTES = 8 << 20
MAX_RESOLVE_BYTES = 192 << 20
"""A resolve carries whole envelopes."""
MAX_ERROR_BYTES = 64 << 10
RETRIES = 2
UPLOAD_STALL = 60.0
"""Seconds without progress that end an upload: the other side may be writing gigabytes to a slow store."""
MAX_RETRY_AFTER = 5.0
"""Seconds of a ``Retry-After`` that are honoured."""
MAX_REDIRECTS = 3


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a registry is there, for people. ``skew``: this machine's clock minus the registry's, in
    seconds (the ``Date`` header has whole ones); ``None`` if it sent none."""

    info: InfoAnswer
    whoami: WhoAmI | None
    seconds: float
    skew: float | None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Remote:
    """One registry. Thread-safe; after a fork the child opens connections of its own.

    ``timeout``: seconds in all for one call, retries included, unless the call is given a ``deadline``
    (a value of ``time.monotonic()``). A transfer of packs has none of its own: it fails when nothing
    moved for ``timeout`` seconds. Looking up a host name is the system's and cannot be interrupted.

    Raises ``InvalidRequest`` for a URL that is none and for a token that would go over plain HTTP to
    another machine.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 10.0,
        connect_timeout: float = 3.0,
        user_agent: str = "",
        retries: int = RETRIES,
    ) -> None:
        self.url = url.rstrip("/")
        self.origin, self._prefix = split_url(self.url, "the registry's URL")
        if token and self.origin.scheme == "http" and not self.origin.loopback:
            raise InvalidRequest(
                f"{self.origin}: a token is not sent over plain HTTP to another machine",
                "use https://, or no token",
            )
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidRequest("the token: not printable ASCII without spaces", "check CACHESVC_TOKEN")
        self._token = token
        self.timeout = timeout
        self._retries = retries
        self._connect_timeout = connect_timeout
        self._pid = 0
        self._own_process()
        self._agent = user_agent or f"cachesvc-client/{__version__} python/{platform.python_version()}"

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections. The object may be used again."""
        self._pool.clear()

    @property
    def identity(self) -> Digest:
        """Registry and token, for what may be shared only between those that see the same."""
        return Digest.of(codec.canonical([self.url, self._token]))

    # Calls, one for each route.

    def info(self, deadline: float | None = None) -> InfoAnswer:
        """Whether this is a registry, and of which version."""
        return self.call("GET", "/v1/info", None, InfoAnswer, deadline=deadline)

    def whoami(self, deadline: float | None = None) -> WhoAmI:
        """The token in use. Raises ``Unauthenticated`` if the registry does not know it."""
        return self.call("GET", "/v1/whoami", None, WhoAmI, deadline=deadline)

    def probe(self, deadline: float | None = None) -> Probe:
        """``info`` and, with a token, ``whoami``; with the time that one call took."""
        began = time.monotonic()
        answer = self._exchange("GET", "/v1/info", None, deadline=deadline, idempotent=True)
        seconds, now = time.monotonic() - began, time.time()
        date = answer.headers.get("Date")
        parsed = email.utils.parsedate_tz(date) if date else None
        skew = now - seconds / 2 - email.utils.mktime_tz(parsed) if parsed else None
        info = self._parse(InfoAnswer, answer.body, MAX_ANSWER_BYTES)
        return Probe(info, self.whoami(deadline) if self._token else None, seconds, skew)

    def resolve(self, request: ResolveRequest, deadline: float | None = None) -> ResolveAnswer:
        """The revisions that fit. Their envelopes are not checked yet."""
        return parse_resolved(self.resolve_bytes(request, deadline))

    def resolve_bytes(self, request: ResolveRequest, deadline: float | None = None) -> bytes:
        """The answer as it came, for the node's cache of answers; ``parse_resolved`` reads it."""
        body = codec.canonical(request)
        return self._exchange(
            "POST", "/v1/resolve", body, deadline=deadline, idempotent=True, limit=MAX_RESOLVE_BYTES
        ).body

    def names(self, namespace: Namespace, deadline: float | None = None) -> tuple[NameSummary, ...]:
        """All names of a namespace."""
        return self._list("GET", f"/v1/namespaces/{namespace}/names", NameSummary, deadline)

    def entries(self, name: Name, deadline: float | None = None) -> tuple[EntrySummary, ...]:
        """All entries under a name and tag."""
        query = urllib.parse.urlencode({"name": name.name, "tag": name.tag})
        return self._list("GET", f"/v1/namespaces/{name.namespace}/entries?{query}", EntrySummary, deadline)

    def entry(self, entry: Digest, deadline: float | None = None) -> EntrySummary:
        """The head of one entry. Raises ``NotFound`` if it has none."""
        return self.call("GET", f"/v1/entries/{entry}", None, EntrySummary, deadline=deadline)

    def report(self, request: ReportRequest, deadline: float | None = None) -> ReportAnswer:
        """Tells what a start came to; never sent twice. Raises ``Forbidden`` for a token that only reads."""
        return self.call("POST", "/v1/reports", request, ReportAnswer, deadline=deadline, idempotent=False)

    def create_token(self, request: TokenRequest, deadline: float | None = None) -> TokenAnswer:
        """A new token; its secret is in this answer only."""
        return self.call("POST", "/v1/tokens", request, TokenAnswer, deadline=deadline, idempotent=False)

    def begin_upload(self, request: UploadRequest, deadline: float | None = None) -> UploadAnswer:
        """Takes a lease. ``abort`` gives it back; otherwise it ends by itself."""
        return self.call("POST", "/v1/uploads", request, UploadAnswer, deadline=deadline, idempotent=False)

    def put_pack(
        self, upload: UploadAnswer, pack: Path | BinaryIO, size: int, deadline: float | None = None
    ) -> StoredAnswer:
        """Streams ``size`` bytes from a file (or from where an open one stands); memory does not grow with
        it. Retried from its beginning, as the registry allows. Raises ``Corrupt`` if the file ends early."""
        if not upload.pack_path.startswith("/") or upload.pack_path.startswith("//"):
            raise ProtocolMismatch(f"{self.origin}: an upload goes to the registry itself")
        start = 0 if isinstance(pack, Path) else pack.tell()
        answer = self._exchange(
            "PUT",
            upload.pack_path,
            lambda: _file_chunks(pack, start, size),
            deadline=deadline,
            idempotent=True,
            length=size,
            transfer=True,
        )
        return self._parse(StoredAnswer, answer.body, MAX_ANSWER_BYTES)

    def put_bundle(
        self,
        request: BundleRequest,
        envelope: bytes,
        pack: Path | BinaryIO,
        size: int,
        deadline: float | None = None,
    ) -> CommitAnswer:
        """``begin_upload``, ``put_pack`` and ``commit`` in one request, which is retried as a whole: the same
        again is a success. Raises ``NotFound`` from a registry that knows the three only."""
        start = 0 if isinstance(pack, Path) else pack.tell()
        head = bundle_head(envelope)
        answer = self._exchange(
            "POST",
            f"/v1/bundles?{_query(request)}",
            lambda: itertools.chain([head], _file_chunks(pack, start, size)),
            deadline=deadline,
            idempotent=True,
            length=len(head) + size,
            transfer=True,
        )
        return self._parse(CommitAnswer, answer.body, MAX_ANSWER_BYTES)

    def claim(self, request: ClaimRequest, deadline: float | None = None) -> ClaimAnswer:
        """Takes a claim, or waits for it as long as the request says, which the ``deadline`` must exceed."""
        return self.call("POST", "/v1/claims", request, ClaimAnswer, deadline=deadline)

    def renew_claim(self, claim: ClaimRef, deadline: float | None = None) -> ClaimAnswer:
        """Says that the holder still compiles. Raises ``ClaimLost`` if the claim is somebody else's."""
        return self.call("POST", "/v1/claims/renew", claim, ClaimAnswer, deadline=deadline)

    def release_claim(self, request: ClaimRelease, deadline: float | None = None) -> None:
        """Gives a claim back. One that is over is a success."""
        with suppress(ClaimLost):
            self.tell("POST", "/v1/claims/release", request, deadline)

    def commit(self, upload: str, request: CommitRequest, deadline: float | None = None) -> CommitAnswer:
        """Makes the uploaded revision the head. Retried: the same manifest again is a success."""
        path = f"/v1/uploads/{urllib.parse.quote(upload, safe='')}/commit"
        return self.call("POST", path, request, CommitAnswer, deadline=deadline)

    def abort(self, upload: str, deadline: float | None = None) -> None:
        """Gives a lease back. An upload that is gone is a success."""
        with suppress(NotFound):
            path = f"/v1/uploads/{urllib.parse.quote(upload, safe='')}"
            self._exchange("DELETE", path, None, deadline=deadline, idempotent=True)

    def call(
        self,
        method: str,
        path: str,
        record: object | None,
        answer_type: type[R],
        *,
        deadline: float | None = None,
        idempotent: bool = True,
    ) -> R:
        """One request with a record as its body (or none), one record as the answer.

        Raises the ``CacheSvcError`` that the registry's answer stands for, ``Unavailable`` if there is none
        in time, ``ProtocolMismatch`` if it is not of this version, or not of a registry.
        """
        body = None if record is None else codec.canonical(record)
        answer = self._exchange(method, path, body, deadline=deadline, idempotent=idempotent)
        return self._parse(answer_type, answer.body, MAX_ANSWER_BYTES)

    def rows(self, path: str, item: type[R], deadline: float | None = None) -> tuple[R, ...]:
        """A GET whose answer is a list of records. Raises as ``call`` does."""
        return self._list("GET", path, item, deadline)

    def tell(
        self, method: str, path: str, record: object | None = None, deadline: float | None = None
    ) -> None:
        """A request whose answer has no body. It may be sent twice. Raises as ``call`` does."""
        body = None if record is None else codec.canonical(record)
        self._exchange(method, path, body, deadline=deadline, idempotent=True)

    def raw(self, path: str, limit: int, deadline: float | None = None) -> bytes:
        """The exact bytes of a GET's answer, at most ``limit`` of them. Raises as ``call`` does."""
        return self._exchange("GET", path, None, deadline=deadline, idempotent=True, limit=limit).body

    def fetch(
        self, found: ResolvedRevision, pack: PackRecord, offset: int = 0, *, deadline: float | None = None
    ) -> Iterator[bytes]:
        """The bytes of a revision's pack from ``offset``, by the link that the answer holds.

        Where that fails for any reason (a store that cannot be reached from here, a link that is over), the
        registry itself is asked for the rest. Otherwise as :meth:`download`.
        """
        own = pack_path(found.revision)
        if self._locate(found.pack_url)[0] != self.origin:
            try:
                for chunk in self.download(
                    found.pack_url, offset, pack.size, pack=pack.digest, deadline=deadline, retries=0
                ):
                    offset += len(chunk)
                    yield chunk
                return
            except CacheSvcError as error:
                _log.info("%s; asking the registry itself for the pack", error)
        else:
            own = found.pack_url
        yield from self.download(own, offset, pack.size, pack=pack.digest, deadline=deadline)

    def download(
        self,
        pack_url: str,
        offset: int,
        size: int,
        *,
        pack: Digest | None = None,
        deadline: float | None = None,
        retries: int | None = None,
    ) -> Iterator[bytes]:
        """The bytes ``offset`` to ``size`` of a pack of ``size`` bytes, in pieces; exactly that many.

        ``pack_url``: a path of the registry, which gets the token, or any other URL, which never does. A
        broken transfer goes on where it stopped, as long as each try brings something. ``pack`` guards a
        resumed one (``If-Range``). The caller checks the digest. Raises ``NotFound`` (resolve once more),
        ``Corrupt`` if more or other bytes are offered than asked for, ``Unavailable``.
        """
        self._own_process()
        origin, path = self._locate(pack_url)
        retries = self._retries if retries is None else retries
        failures = 0
        while offset < size:
            before = offset
            try:
                for chunk in self._range(origin, path, offset, size, pack, deadline):
                    offset += len(chunk)
                    yield chunk
            except CacheSvcError as error:
                failures = 0 if offset > before else failures + 1
                if not error.retry or failures > retries or not self._pause(failures, 0.0, deadline):
                    raise

    # Inside.

    def _own_process(self) -> None:
        """A forked child shares neither connections nor locks with its parent."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._pool = Pool(self._connect_timeout)
            self._breakers: dict[Origin, Breaker] = {}

    def _breaker(self, origin: Origin) -> Breaker:
        return self._breakers.setdefault(origin, Breaker())

    def _list(self, method: str, path: str, item: type[R], deadline: float | None) -> tuple[R, ...]:
        answer = self._exchange(
            method, path, None, deadline=deadline, idempotent=True, limit=MAX_RESOLVE_BYTES
        )
        try:
            rows = codec.parse_json(answer.body, limit=MAX_RESOLVE_BYTES, what="the listing")
            if not isinstance(rows, list):
                raise ValueError("the listing: a list is expected")
            return tuple(codec.build(item, row, f"row {index}") for index, row in enumerate(rows))
        except ValueError as error:
            raise ProtocolMismatch(f"{self.origin}: {error}", _OTHER_VERSION) from None

    def _parse(self, record: type[R], body: bytes, limit: int) -> R:
        try:
            return _record(record, body, limit)
        except ProtocolMismatch as error:
            raise ProtocolMismatch(f"{self.origin}: {error.message}", error.hint) from None

    def _exchange(
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
    ) -> _Answer:
        """One call to the registry itself, retried where that is safe."""
        self._own_process()
        if transfer:
            clock = Clock(deadline, max(self.timeout, UPLOAD_STALL))
        else:
            clock = Clock(time.monotonic() + self.timeout if deadline is None else deadline, self.timeout)
        breaker, failures = self._breaker(self.origin), 0
        while True:
            answer = None
            try:
                with breaker.guard(self.origin):
                    answer = self._once(method, path, body, clock, idempotent, limit, length)
                    self._check(answer)
                    return answer
            except CacheSvcError as error:
                failures += 1
                wait = _retry_after(answer.headers) if answer else 0.0
                again = idempotent and error.retry and failures <= self._retries
                if not again or breaker.open or not self._pause(failures, wait, clock.deadline):
                    raise

    def _once(
        self,
        method: str,
        path: str,
        body: Body | None,
        clock: Clock,
        idempotent: bool,
        limit: int,
        length: int | None,
    ) -> _Answer:
        headers = self._headers(self.origin, token=True)
        if body is not None:
            headers["Content-Type"] = "application/octet-stream" if callable(body) else "application/json"
            headers["Content-Length"] = str(len(body) if isinstance(body, bytes) else length)
        # A connection that lay idle may have been closed by the other side: only for what may be sent twice.
        with self._pool.request(
            self.origin, method, self._prefix + path, headers, body, clock, reuse=idempotent
        ) as response:
            limit = limit if response.status < 400 else MAX_ERROR_BYTES
            return _Answer(response.status, response.headers, response.body(limit))

    def _headers(self, origin: Origin, *, token: bool) -> dict[str, str]:
        headers = {"User-Agent": self._agent, "Accept-Encoding": "identity", "Host": origin.netloc}
        if origin == self.origin:
            headers[API_HEADER] = str(API_VERSION)
            if self._token and token:
                headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _check(self, answer: _Answer) -> None:
        """Whether a registry of this version answered, and not with an error."""
        status, said = answer.status, answer.headers.get(API_HEADER)
        if 300 <= status < 400:
            there = _shown(answer.headers.get("Location"))
            raise ProtocolMismatch(
                f"{self.origin}: redirects to {there}; a token does not follow",
                "set CACHESVC_URL to the registry's own address",
            )
        if said is None:
            error = from_wire(status, None)  # a proxy's or a load balancer's, or no registry at all
            if not error.retry:
                raise ProtocolMismatch(
                    f"{self.origin}: not a cachesvc registry (status {status}, no {API_HEADER} header)",
                    "check CACHESVC_URL",
                )
        elif said != str(API_VERSION):
            older = said.isdigit() and int(said) < API_VERSION
            raise ProtocolMismatch(
                f"{self.origin}: the registry speaks API {said[:20]}, this client {API_VERSION}",
                "upgrade the registry" if older else "upgrade cachesvc-client",
            )
        if status >= 400:
            try:
                body = codec.parse_json(answer.body, limit=MAX_ERROR_BYTES, what="the error")
            except ValueError:
                body = None
            raise from_wire(status, body)

    def _pause(self, failures: int, wanted: float, deadline: float | None) -> bool:
        """Waits before the next try; false if the deadline does not leave the time."""
        pause = max(min(wanted, MAX_RETRY_AFTER), 0.1 * 2**failures * random.uniform(0.5, 1.0))
        if deadline is not None and time.monotonic() + pause >= deadline:
            return False
        time.sleep(pause)
        return True

    def _locate(self, pack_url: str) -> tuple[Origin, str]:
        if pack_url.startswith("/") and not pack_url.startswith("//"):
            return self.origin, self._prefix + pack_url
        try:
            return split_url(pack_url, "the pack's URL")
        except InvalidRequest as error:
            raise ProtocolMismatch(f"{self.origin}: {error.message}", error.hint) from None

    def _range(
        self, origin: Origin, path: str, offset: int, size: int, pack: Digest | None, deadline: float | None
    ) -> Iterator[bytes]:
        """One GET. Redirects are followed, without the token, and never from https to http."""
        clock = Clock(deadline, self.timeout)
        for followed in range(MAX_REDIRECTS + 1):
            headers = self._headers(origin, token=not followed)
            if offset:
                headers["Range"] = f"bytes={offset}-{size - 1}"
                if pack is not None and origin == self.origin:  # an S3 ETag is not our digest
                    headers["If-Range"] = f'"{pack}"'
            with (
                self._breaker(origin).guard(origin),
                self._pool.request(origin, "GET", path, headers, None, clock, reuse=True) as response,
            ):
                if response.status in (200, 206):
                    skip = _promised(response, offset, size, origin)
                    self._breaker(origin).alive()
                    yield from response.stream(skip, size - offset)
                    return
                if response.status not in (301, 302, 303, 307, 308):
                    raise self._refused(origin, response)
                origin, path = _redirected(origin, path, response.headers.get("Location"))
        raise Unavailable(f"{origin}: more than {MAX_REDIRECTS} redirects")

    def _refused(self, origin: Origin, response: Response) -> CacheSvcError:
        body = response.body(MAX_ERROR_BYTES)
        if origin == self.origin:
            try:
                self._check(_Answer(response.status, response.headers, body))
            except CacheSvcError as error:
                return error
        if response.status >= 500 or response.status in (408, 425, 429):
            return Unavailable(f"{origin}: the store answered with status {response.status}")
        if response.status == 416:
            return Corrupt(f"{origin}: the pack there is shorter than the registry says")
        if response.status in (403, 404, 410):  # an expired signature, or collected meanwhile
            return NotFound(
                f"{origin}: the pack is not there (status {response.status})", "resolve once more"
            )
        return ProtocolMismatch(f"{origin}: status {response.status} for a pack")


def _query(request: BundleRequest) -> str:
    said: dict[str, object] = {name: getattr(request, name) for name in _SAID}
    if request.claim is not None:
        said |= {"claim": request.claim.key, "holder": request.claim.holder, "fence": request.claim.fence}
    return urllib.parse.urlencode({name: value for name, value in said.items() if value is not None})


_SAID = ("namespace", "name", "lane", "head", "deed")


def parse_resolved(raw: bytes) -> ResolveAnswer:
    """The record of ``Remote.resolve_bytes``. Raises ``ProtocolMismatch``."""
    return _record(ResolveAnswer, raw, MAX_RESOLVE_BYTES)


_OTHER_VERSION = "client and registry may be of different versions; is it a registry?"


def _record(record: type[R], body: bytes, limit: int) -> R:
    try:
        return codec.build(record, codec.parse_json(body, limit=limit, what="the answer"))
    except ValueError as error:
        raise ProtocolMismatch(str(error), _OTHER_VERSION) from None


def _file_chunks(pack: Path | BinaryIO, start: int, size: int) -> Iterator[bytes]:
    try:
        if isinstance(pack, Path):
            with open(pack, "rb") as file:
                yield from _exactly(file, size)
        else:
            pack.seek(start)
            yield from _exactly(pack, size)
    except OSError as error:
        raise StorageFull(f"{pack if isinstance(pack, Path) else 'the pack'}: {error.strerror}") from None


def _exactly(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        chunk = file.read(min(size, CHUNK))
        if not chunk:
            raise Corrupt(f"the pack ends {size} bytes early")
        size -= len(chunk)
        yield chunk


def _promised(response: Response, offset: int, size: int, origin: Origin) -> int:
    """How many bytes to pass over: none if the range was honoured, ``offset`` if all is sent again."""
    length = response.length
    if response.status == 206:
        wanted = f"bytes {offset}-{size - 1}/{size}"
        if response.headers.get("Content-Range", "") != wanted:
            said = _shown(response.headers.get("Content-Range"))
            raise Corrupt(f"{origin}: asked for {wanted}, offered {said}")
        expected = size - offset
    else:
        expected = size
    if length is not None and length != expected:
        raise Corrupt(
            f"{origin}: a pack of {size} bytes is expected, {length} of {expected} bytes are offered"
        )
    return 0 if response.status == 206 else offset


def _redirected(origin: Origin, path: str, location: str | None) -> tuple[Origin, str]:
    base = f"{origin}{path}"
    try:
        there, path = split_url(urllib.parse.urljoin(base, location or "").split("#")[0], "redirect")
    except (InvalidRequest, ValueError):
        raise ProtocolMismatch(f"{origin}: a redirect to {_shown(location)}") from None
    if origin.scheme == "https" and there.scheme == "http":
        raise Untrusted(f"{origin}: redirects from https to {there}")
    return there, path


def _retry_after(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "") or ""
    return float(text) if text.isdigit() and len(text) < 7 else 0.0


def _shown(text: str | None) -> str:
    return "nothing" if text is None else repr(text[:120])
