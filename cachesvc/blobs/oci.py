"""Store blobs in one repository of an OCI registry, such as the one that a cluster has already.

An object is a manifest with one layer. Its tag is its key, with ``S`` for each slash: keys have no
capitals. The layer arrives in parts and is visible to nobody until the tag is written, which is last. The
registry removes the bytes of deleted objects in its own collection (``registry garbage-collect``).

The code of ``cachesvc.oci`` speaks with the registry.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cachesvc.oci.calls import Request
from cachesvc.oci.descriptors import EMPTY, EMPTY_BYTES, PACK, Descriptor, Document, manifest
from cachesvc.oci.distribution import Repository, with_digest
from cachesvc.oci.places import Blob
from cachesvc.oci.reference import Reference
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Corrupt,
    Forbidden,
    InvalidRequest,
    NotFound,
    ProtocolMismatch,
    StorageFull,
    Unauthenticated,
    Unavailable,
    Untrusted,
)

from .store import CHUNK_BYTES, BlobFacts, Unusable, checked_key, clipped, missing

PART_BYTES = 8 << 20
"""Bytes of a part of an upload. A put needs memory for one part and a chunk."""
_OBJECT = "application/vnd.cachesvc.object.v1"
"""Artifact type of an object."""
_KEY = "vnd.cachesvc.key"
"""Annotation with the key, so that no two objects have the same manifest: deleting one deletes no other."""
_SLASH = "S"
_MAX_TAG = 128
"""Characters of a tag, at most."""
_TAGS = 1000
"""Tags of one page of a listing, at most."""
_MAX_PAGE_BYTES = 8 << 20
"""Bytes of one page of a listing, at most. Registries that have no pages answer with all tags at once."""


def open_url(url: str, *, plain_http: bool = False) -> OciBlobStore:
    """Return the store of ``oci://HOST[:PORT]/REPOSITORY``."""
    return OciBlobStore(url.removeprefix("oci://"), plain_http=plain_http)


class OciBlobStore:
    """A :class:`~cachesvc.blobs.store.BlobStore` in one repository.

    ``repository``: ``host[:port]/repository``, without a tag. ``plain_http``: HTTP to another machine,
    without credentials. Credentials are read as docker reads them. A key has at most 128 characters.
    """

    def __init__(self, repository: str, *, plain_http: bool = False) -> None:
        reference = Reference.parse(repository)
        if str(Reference(reference.host, reference.repository, "")) != repository:
            raise InvalidRequest(f"oci_repository: {repository!r}", "expected host[:port]/repository")
        self._where = repository
        self._repository = Repository.of(reference, plain_http=plain_http)
        self._calls = self._repository.calls

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        tag = _tag(key)
        with self._own_errors():
            path = self._repository.begin_upload()
        try:
            layer = self._upload(path, chunks)
        except BaseException:
            with contextlib.suppress(CacheSvcError):
                self._calls.call(Request("DELETE", path, accept=(202, 204), repeat=False))
            raise
        with self._own_errors():
            self._repository.put_blob(Blob.of(EMPTY, EMPTY_BYTES))
            document = manifest([layer], artifact_type=_OBJECT, annotations={_KEY: key})
            self._repository.put_document(document, tag)
        return self.size(key)

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        layer = self._layer(key)
        left = clipped(key, layer.size, start, length)
        return self._read(layer, start, start + left)

    def size(self, key: str) -> int:
        return self._layer(key).size

    def delete(self, key: str) -> None:
        with self._own_errors():
            try:
                digest = self._document(key).descriptor.digest
            except NotFound:
                return
            # By tag, a registry may refuse it; the manifest is this object's alone.
            request = Request("DELETE", f"manifests/{digest}", accept=(200, 202, 404, 405))
            if self._calls.call(request).status == 405:
                raise Unusable(
                    f"repository {self._where}: the registry deletes nothing",
                    "let it: storage.delete.enabled in the configuration of docker's registry",
                )

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        for tag in self._tags():
            key = tag.replace(_SLASH, "/")
            if not key.startswith(prefix):
                continue
            try:
                yield BlobFacts(key, self.size(key))
            except (NotFound, ValueError):  # deleted meanwhile, or a tag that is none of these
                continue

    def check(self) -> None:
        with self._own_errors():
            self._calls.call(Request("GET", "tags/list?n=1", accept=(200, 404), limit=_MAX_PAGE_BYTES))

    def _upload(self, path: str, chunks: Iterable[bytes]) -> Descriptor:
        """Sends the bytes to an upload in parts, ends it, and returns what describes them."""
        hasher, size = hashlib.sha256(), 0
        for part in _parts(chunks):
            hasher.update(part)
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(len(part)),
                "Content-Range": f"{size}-{size + len(part) - 1}",
            }
            request = Request("PATCH", path, headers, part, accept=(202,), transfer=True, repeat=False)
            with self._own_errors():
                path = self._repository.upload_path(self._calls.call(request))
            size += len(part)
        digest = Digest(f"sha256:{hasher.hexdigest()}")
        ending = Request(
            "PUT",
            with_digest(path, digest),
            {"Content-Length": "0"},
            accept=(201,),
            transfer=True,
            repeat=False,
        )
        with self._own_errors():
            self._calls.call(ending)
        return Descriptor(PACK, digest, size)

    def _document(self, key: str) -> Document:
        try:
            return self._repository.document(_tag(key))
        except NotFound:
            raise missing(key) from None

    def _layer(self, key: str) -> Descriptor:
        with self._own_errors():
            document = self._document(key)
        if document.artifact_type != _OBJECT or len(document.entries) != 1:
            raise missing(key)
        return document.entries[0]

    def _read(self, layer: Descriptor, start: int, end: int) -> Iterator[bytes]:
        whole = (start, end) == (0, layer.size)
        with self._own_errors():
            chunks = self._repository.chunks(layer) if whole else self._repository.span(layer, start, end)
            for chunk in chunks:
                for begin in range(0, len(chunk), CHUNK_BYTES):
                    yield chunk[begin : begin + CHUNK_BYTES]

    def _tags(self) -> Iterator[str]:
        path = f"tags/list?n={_TAGS}"
        while path:
            with self._own_errors():
                answer = self._calls.call(Request("GET", path, accept=(200, 404), limit=_MAX_PAGE_BYTES))
                tags = _tags_of(answer.body) if answer.status == 200 else []
            yield from tags
            link = re.match(r'<([^>]+)>; *rel="next"', answer.headers.get("Link") or "")
            following = urllib.parse.urlsplit(link[1]) if link else None
            path = f"{following.path}?{following.query}" if following and answer.status == 200 else ""

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Turns the errors of a registry of images into those of a store."""
        try:
            yield
        except (NotFound, Unavailable, StorageFull):
            raise
        except Corrupt as error:  # bytes that were damaged on their way may be whole the next time
            raise Unavailable(f"repository {self._where}: {error.message}") from None
        except (Unauthenticated, Forbidden, ProtocolMismatch, Untrusted, InvalidRequest) as error:
            raise Unusable(f"repository {self._where}: {error.message}", error.hint) from None
        except CacheSvcError as error:
            raise Unavailable(f"repository {self._where}: {error.message}", error.hint) from None


def _tag(key: str) -> str:
    tag = checked_key(key).replace("/", _SLASH)
    if len(tag) > _MAX_TAG:
        raise ValueError(f"a blob key of {len(tag)} characters, and a tag has at most {_MAX_TAG}")
    return tag


def _tags_of(body: bytes) -> list[str]:
    try:
        tags = codec.parse_json(body, limit=_MAX_PAGE_BYTES, what="tags")["tags"] or []
        if not all(isinstance(tag, str) for tag in tags):
            raise TypeError
        return list(tags)
    except (ValueError, LookupError, TypeError):
        raise Corrupt("a list of tags that is none") from None


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the same bytes in parts of at least ``PART_BYTES``; the last may be shorter."""
    gathered: list[bytes] = []
    size = 0
    for chunk in chunks:
        gathered.append(chunk)
        size += len(chunk)
        if size >= PART_BYTES:
            part, gathered, size = b"".join(gathered), [], 0
            yield part
    if size:
        yield b"".join(gathered)
