"""Speaks with one repository of an OCI registry (the distribution specification, 1.1).

Every answer is bounded, everything named by a digest is checked against it, and every failure is a
``CacheSvcError`` with the registry's address and how to fix it.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from .. import __version__
from ..http.connection import Body, Pool, Response
from ..http.downloads import MAX_REDIRECTS, follow_redirect
from ..http.links import LinkPolicy
from ..http.origin import Network, Origin
from ..http.timed import Clock
from ..wire import codec
from ..wire.digest import Digest
from ..wire.errors import (
    CacheSvcError,
    Corrupt,
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
from .credentials import CredentialSource, find_credentials
from .descriptors import INDEXES, MANIFESTS, MAX_MANIFEST_BYTES, Descriptor, Document, index, read_document
from .places import Blob, checked
from .reference import Reference

CALL_SECONDS = 60.0
"""Seconds within which a small request must be answered."""
STALL_SECONDS = 60.0
"""Seconds without progress that end a transfer."""
CONNECT_SECONDS = 10.0
"""Seconds within which a connection must be made."""
RETRIES = 2
"""Number of times that a request is sent again where that is safe, or a download goes on without progress."""
_MAX_ERROR_BYTES = 64 << 10
_NO_REFERRERS = (301, 302, 303, 307, 308, 400, 404, 405, 501)
"""Statuses of registries that have no list of referrers."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds a whole answer; the body is in memory."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Repository:
    """A repository of a registry, as `places` defines a source and a target. Thread-safe.

    ``origin``: where the registry is. ``allow_links``: networks to which its redirects and realms may lead
    although they are not public.
    """

    def __init__(
        self, origin: Origin, name: str, source: CredentialSource, allow_links: tuple[Network, ...] = ()
    ) -> None:
        self.where = f"{origin.netloc}/{name}"
        self._origin, self._name = origin, name
        self._links = LinkPolicy(origin, allow_links)
        self._pool = Pool(CONNECT_SECONDS, self._links)
        self._authorization = Authorization(origin, source, self._pool, self._links)

    @classmethod
    def of(
        cls,
        reference: Reference,
        source: CredentialSource | None = None,
        *,
        plain_http: bool = False,
        allow_links: tuple[Network, ...] = (),
    ) -> Repository:
        """Returns the repository of a reference. ``source``: ``None`` reads docker's configuration."""
        source = find_credentials(reference.host) if source is None else source
        return cls(reference.origin(plain_http), reference.repository, source, allow_links)

    def close(self) -> None:
        """Closes idle connections."""
        self._pool.clear()

    def document(self, name: str) -> Document:
        """Returns the manifest or index of a tag or digest. Raises ``NotFound``, and ``Corrupt`` for other
        bytes than the digest names."""
        what = f"{self.where}{'@' if ':' in name else ':'}{name}"
        headers = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        answer = self.call("GET", f"manifests/{name}", headers, limit=MAX_MANIFEST_BYTES, what=what)
        media_type = (answer.headers.get("Content-Type") or "").partition(";")[0].strip()
        digest = Digest.of(answer.body)
        if ":" in name and str(digest) != name:
            raise Corrupt(f"{what}: the registry answers with other bytes, whose digest is {digest}")
        return read_document(answer.body, media_type, what)

    def has_blob(self, digest: Digest) -> bool:
        """Returns whether the repository has a blob."""
        statuses = (200, 301, 302, 303, 307, 308, 404)
        return self.call("HEAD", f"blobs/{digest}", accept=statuses).status != 404

    def chunks(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yields the pieces of a blob, which is checked at the end."""
        return checked(self.span(descriptor, 0, descriptor.size), descriptor, self.where)

    def span(self, descriptor: Descriptor, start: int, end: int) -> Iterator[bytes]:
        """Yields the bytes ``start`` to ``end`` of a blob; exactly that many, unchecked. A transfer that
        breaks off is resumed, as long as each try brings some bytes."""
        failures = 0
        while start < end:
            before = start
            try:
                for chunk in self._span_once(descriptor, start, end):
                    start += len(chunk)
                    yield chunk
            except CacheSvcError as error:
                failures = 0 if start > before else failures + 1
                if not error.retry or failures > RETRIES:
                    raise
                time.sleep(0.1 * 2**failures)

    def referrers(self, subject: Descriptor) -> list[Descriptor]:
        """Returns what refers to a manifest: by the list that the registry keeps, or else by the index under
        the tag that the specification names for registries without one."""
        accept = (200, *_NO_REFERRERS)
        what = f"{self.where}: the referrers of {subject.digest}"
        answer = self.call(
            "GET", f"referrers/{subject.digest}", accept=accept, limit=MAX_MANIFEST_BYTES, what=what
        )
        if answer.status == 200:
            return list(read_document(answer.body, INDEXES[0], what).entries)
        try:
            return list(self._index_of_referrers(subject).entries)
        except NotFound:
            return []

    def put_blob(self, blob: Blob) -> bool:
        """Stores a blob; returns whether the repository lacked it."""
        descriptor = blob.descriptor
        if self.has_blob(descriptor.digest):
            return False
        path = self.begin_upload()
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(descriptor.size)}
        self.call(
            "PUT",
            with_digest(path, descriptor.digest),
            headers,
            body=lambda: checked(blob.chunks(), descriptor, "what is sent"),
            accept=(201,),
            transfer=True,
            repeat=False,
        )
        return True

    def put_document(self, document: Document, tag: str = "") -> None:
        """Stores a manifest or index, and keeps the index of referrers where the registry has no such
        list."""
        answer = self._put(document, str(document.descriptor.digest))
        if document.subject is not None and answer.headers.get("OCI-Subject") is None:
            self._add_referrer(document.subject, document)
        if tag:
            self._put(document, tag)

    def begin_upload(self) -> str:
        """Begins an upload, and returns the path to which its bytes are sent."""
        answer = self.call("POST", "blobs/uploads/", {"Content-Length": "0"}, accept=(202,), repeat=False)
        return self.upload_path(answer)

    def upload_path(self, answer: Answer) -> str:
        """Returns where an upload goes on. Raises ``ProtocolMismatch`` for an address of another origin."""
        base = f"/v2/{self._name}/blobs/uploads/"
        target, path = follow_redirect(self._origin, base, answer.headers.get("Location"))
        if target != self._origin:
            raise ProtocolMismatch(
                f"{self.where}: sends an upload to {target}, and credentials do not follow",
                "have the registry answer with its own address, or with relative ones",
            )
        return path

    def call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: Body | None = None,
        accept: tuple[int, ...] = (200,),
        limit: int = _MAX_ERROR_BYTES,
        what: str = "",
        transfer: bool = False,
        repeat: bool = True,
    ) -> Answer:
        """Makes one request, and sends it again where ``repeat`` allows that and it failed for a while.

        ``path``: below the repository, or from the root on. ``accept``: statuses that are answers; another
        one is raised as its error. ``what``: begins messages.
        """
        failures = 0
        while True:
            try:
                return self._call_once(method, path, headers or {}, body, accept, limit, what, transfer)
            except CacheSvcError as error:
                failures += 1
                if not (repeat and error.retry and failures <= RETRIES):
                    raise
                time.sleep(0.1 * 2**failures)

    def _call_once(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body | None,
        accept: tuple[int, ...],
        limit: int,
        what: str,
        transfer: bool,
    ) -> Answer:
        what = what or f"{self.where}"
        with self._open(method, path, headers, body, transfer) as response:
            if response.status in accept:
                try:
                    data = b"" if method == "HEAD" else response.body(limit)
                except TooLarge:
                    raise TooLarge(f"{what}: an answer of more than the {limit} bytes allowed") from None
                return Answer(response.status, response.headers, data)
            raise self._error(response, method, what)

    @contextmanager
    def _open(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None, transfer: bool
    ) -> Iterator[Response]:
        """Sends a request, with the answer to the registry's challenge if it sends one."""
        path = path if path.startswith("/") else f"/v2/{self._name}/{path}"
        clock = Clock(None if transfer else time.monotonic() + CALL_SECONDS, STALL_SECONDS)
        for attempt in range(2):
            sent = {
                "User-Agent": f"cachesvc-client/{__version__}",
                "Accept-Encoding": "identity",
                "Host": self._origin.netloc,
                **headers,
            }
            if self._authorization.header:
                sent["Authorization"] = self._authorization.header
            challenge = None
            with (
                _hinted(),
                self._pool.request(
                    self._origin, method, path, sent, body, clock, reuse=method in ("GET", "HEAD")
                ) as response,
            ):
                if response.status != 401 or attempt:
                    yield response
                    return
                challenge = response.headers.get("WWW-Authenticate")
                response.body(_MAX_ERROR_BYTES)
            self._authorization.answer(challenge)

    def _span_once(self, descriptor: Descriptor, start: int, end: int) -> Iterator[bytes]:
        """Sends one GET. Redirects lead to the registry's store, and get no credentials."""
        path = f"/v2/{self._name}/blobs/{descriptor.digest}"
        headers = {"Range": f"bytes={start}-{end - 1}"} if (start, end) != (0, descriptor.size) else {}
        location: str | None = ""
        with self._open("GET", path, headers, None, True) as response:
            if response.status in (200, 206):
                yield from self._body(response, descriptor, start, end)
                return
            if response.status not in (301, 302, 303, 307, 308):
                raise self._error(response, "GET", f"{self.where}: blob {descriptor.digest}")
            location = response.headers.get("Location")
        origin, path = follow_redirect(self._origin, path, location)
        for _ in range(MAX_REDIRECTS):
            self._links.check_scheme(origin)
            sent = {"Accept-Encoding": "identity", "Host": origin.netloc, **headers}
            clock = Clock(None, STALL_SECONDS)
            with (
                _hinted(),
                self._pool.request(origin, "GET", path, sent, None, clock, reuse=True) as response,
            ):
                if response.status in (200, 206):
                    yield from self._body(response, descriptor, start, end)
                    return
                if response.status not in (301, 302, 303, 307, 308):
                    raise self._error(response, "GET", f"{origin}: blob {descriptor.digest}")
                location = response.headers.get("Location")
            origin, path = follow_redirect(origin, path, location)
        raise Unavailable(f"{self.where}: more than {MAX_REDIRECTS} redirects")

    def _body(self, response: Response, descriptor: Descriptor, start: int, end: int) -> Iterator[bytes]:
        skip, left = (0, end - start) if response.status == 206 else (start, descriptor.size - start)
        offered = response.headers.get("Content-Range")
        if response.status == 206 and offered != f"bytes {start}-{end - 1}/{descriptor.size}":
            raise Corrupt(f"{self.where}: blob {descriptor.digest}: another range than was asked for")
        if response.length is not None and response.length != skip + left:
            raise Corrupt(
                f"{self.where}: blob {descriptor.digest}: {response.length} bytes are offered, "
                f"{skip + left} are expected"
            )
        wanted = end - start
        for chunk in response.stream(skip, left):
            yield chunk[:wanted]
            wanted -= len(chunk)
            if wanted <= 0 and left != end - start:
                return

    def _index_of_referrers(self, subject: Descriptor) -> Document:
        return self.document(f"sha256-{subject.digest.hex}")

    def _add_referrer(self, subject: Descriptor, document: Document) -> None:
        """Adds to the index of referrers. Two writers at once may lose one entry: writing again adds it."""
        try:
            entries = list(self._index_of_referrers(subject).entries)
        except NotFound:
            entries = []
        if all(entry.digest != document.descriptor.digest for entry in entries):
            described = document.descriptor
            entry = Descriptor(
                described.media_type,
                described.digest,
                described.size,
                document.artifact_type,
                described.annotations,
            )
            self._put(index([*entries, entry]), f"sha256-{subject.digest.hex}")

    def _put(self, document: Document, name: str) -> Answer:
        headers = {
            "Content-Type": document.descriptor.media_type,
            "Content-Length": str(len(document.data)),
        }
        return self.call("PUT", f"manifests/{name}", headers, body=document.data, accept=(201,))

    def _error(self, response: Response, method: str, what: str) -> CacheSvcError:
        status = response.status
        said = "" if method == "HEAD" else _message(response.body(_MAX_ERROR_BYTES))
        if status == 401:
            return self._authorization.refusal()
        text = f"{what}: {method} was refused with status {status}{said}"
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


def with_digest(path: str, digest: Digest) -> str:
    """Returns the path that ends an upload with the digest of its bytes."""
    return f"{path}{'&' if '?' in path else '?'}{urllib.parse.urlencode({'digest': str(digest)})}"


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
