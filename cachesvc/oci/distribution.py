"""Speaks with one repository of an OCI registry (the distribution specification, 1.1).

Every answer is bounded, everything named by a digest is checked against it, and every failure is a
``CacheSvcError`` with the registry's address and how to fix it.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Iterator

from cachesvc_client.http.connection import Response
from cachesvc_client.http.downloads import follow_redirect
from cachesvc_client.http.origin import Network
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Corrupt, NotFound, ProtocolMismatch

from .calls import REDIRECTS, RETRIES, Answer, Calls, Request
from .credentials import CredentialSource, find_credentials
from .descriptors import INDEXES, MANIFESTS, MAX_MANIFEST_BYTES, Descriptor, Document, index, read_document
from .places import Blob, checked
from .reference import Reference

_NO_REFERRERS = (*REDIRECTS, 400, 404, 405, 501)
"""Statuses of registries that have no list of referrers."""


class Repository:
    """A repository of a registry, as `places` defines a source and a target. Thread-safe. ``calls``: sends
    its requests."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.where = calls, calls.where

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
        return cls(Calls(reference.origin(plain_http), reference.repository, source, allow_links))

    def document(self, name: str) -> Document:
        """Returns the manifest or index of a tag or digest. Raises ``NotFound``, and ``Corrupt`` for other
        bytes than the digest names."""
        what = f"{self.where}{'@' if ':' in name else ':'}{name}"
        headers = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        answer = self.calls.call(
            Request("GET", f"manifests/{name}", headers, limit=MAX_MANIFEST_BYTES, what=what)
        )
        digest = Digest.of(answer.body)
        if ":" in name and str(digest) != name:
            raise Corrupt(f"{what}: the registry answers with other bytes, whose digest is {digest}")
        return read_document(answer.body, _media_type(answer), what)

    def has_blob(self, digest: Digest) -> bool:
        """Returns whether the repository has a blob."""
        return (
            self.calls.call(Request("HEAD", f"blobs/{digest}", accept=(200, *REDIRECTS, 404))).status != 404
        )

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
        what = f"{self.where}: the referrers of {subject.digest}"
        path, accept = f"referrers/{subject.digest}", (200, *_NO_REFERRERS)
        answer = self.calls.call(Request("GET", path, accept=accept, limit=MAX_MANIFEST_BYTES, what=what))
        if answer.status == 200:
            return list(read_document(answer.body, INDEXES[0], what).entries)
        return self._index_of_referrers(subject)

    def put_blob(self, blob: Blob) -> bool:
        """Stores a blob; returns whether the repository lacked it."""
        descriptor = blob.descriptor
        if self.has_blob(descriptor.digest):
            return False
        path = with_digest(self.begin_upload(), descriptor.digest)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(descriptor.size)}

        def body() -> Iterator[bytes]:
            return checked(blob.chunks(), descriptor, "what is sent")

        self.calls.call(Request("PUT", path, headers, body, accept=(201,), transfer=True, repeat=False))
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
        request = Request("POST", "blobs/uploads/", {"Content-Length": "0"}, accept=(202,), repeat=False)
        return self.upload_path(self.calls.call(request))

    def upload_path(self, answer: Answer) -> str:
        """Returns where an upload goes on. Raises ``ProtocolMismatch`` for an address of another origin."""
        base = f"{self.calls.root}blobs/uploads/"
        target, path = follow_redirect(self.calls.origin, base, answer.headers.get("Location"))
        if target != self.calls.origin:
            raise ProtocolMismatch(
                f"{self.where}: sends an upload to {target}, and credentials do not follow",
                "have the registry answer with its own address, or with relative ones",
            )
        return path

    def _span_once(self, descriptor: Descriptor, start: int, end: int) -> Iterator[bytes]:
        """Sends one GET, and yields what arrives."""
        what = f"{self.where}: blob {descriptor.digest}"
        headers = {"Range": f"bytes={start}-{end - 1}"} if (start, end) != (0, descriptor.size) else {}
        with self.calls.download(f"blobs/{descriptor.digest}", headers, what) as response:
            skip, size = _offered(response, descriptor.size, start, end, what)
            wanted = end - start
            for chunk in response.stream(skip, size):
                yield chunk[:wanted]
                wanted -= len(chunk)
                if wanted <= 0 and size > end - start:  # a whole blob, of which a part was asked for
                    return

    def _index_of_referrers(self, subject: Descriptor) -> list[Descriptor]:
        try:
            return list(self.document(f"sha256-{subject.digest.hex}").entries)
        except NotFound:
            return []

    def _add_referrer(self, subject: Descriptor, document: Document) -> None:
        """Adds to the index of referrers. Two writers at once may lose one entry: writing again adds it."""
        entries, row = self._index_of_referrers(subject), document.descriptor
        if all(entry.digest != row.digest for entry in entries):
            entry = Descriptor(row.media_type, row.digest, row.size, document.artifact_type)
            self._put(index([*entries, entry]), f"sha256-{subject.digest.hex}")

    def _put(self, document: Document, name: str) -> Answer:
        headers = {
            "Content-Type": document.descriptor.media_type,
            "Content-Length": str(len(document.data)),
        }
        return self.calls.call(Request("PUT", f"manifests/{name}", headers, document.data, accept=(201,)))


def with_digest(path: str, digest: Digest) -> str:
    """Returns the path that ends an upload with the digest of its bytes."""
    return f"{path}{'&' if '?' in path else '?'}{urllib.parse.urlencode({'digest': str(digest)})}"


def _media_type(answer: Answer) -> str:
    return (answer.headers.get("Content-Type") or "").partition(";")[0].strip()


def _offered(response: Response, size: int, start: int, end: int, what: str) -> tuple[int, int]:
    """Returns how many bytes of an answer to skip, and how many then follow. Raises ``Corrupt`` if they are
    not those of a blob of ``size`` bytes."""
    skip, follow = (0, end - start) if response.status == 206 else (start, size - start)
    offered = response.headers.get("Content-Range")
    if response.status == 206 and offered != f"bytes {start}-{end - 1}/{size}":
        raise Corrupt(f"{what}: another range than was asked for")
    if response.length is not None and response.length != skip + follow:
        raise Corrupt(f"{what}: {response.length} bytes are offered, {skip + follow} are expected")
    return skip, follow
