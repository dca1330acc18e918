"""Puts bundles into a place as OCI artifacts, and finds them there.

A bundle is a manifest with the artifact type ``application/vnd.cachesvc.bundle.v1`` and two layers: the
pack, and the envelope with the signed manifest. The envelope is attached as a referrer too, where tools
that list referrers find it, and where one with more signatures can be added later. The layer is what
survives a tool that copies one manifest alone. Several bundles under one tag are an index of such
manifests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cachesvc_client.http.uploads import file_chunks
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, NotFound, Untrusted
from cachesvc_client.wire.manifest.records import MAX_ENVELOPE_BYTES, MAX_PACK_BYTES

from .descriptors import (
    BUNDLE,
    DSSE,
    EMPTY,
    EMPTY_BYTES,
    ENVELOPE,
    PACK,
    TITLE,
    Descriptor,
    Document,
    index,
    manifest,
)
from .places import Blob, ImageSource, ImageTarget, read_small

MAX_BUNDLES = 256
"""Largest number of bundles under one tag."""
MAX_BUNDLE_MANIFEST_BYTES = 64 << 10
"""Largest number of bytes of the manifest of one bundle, which names two layers: all under a tag are kept."""
MAX_REFERRERS = 64
"""Largest number of referrers that are looked at for one bundle: each is a request."""
MAX_ENVELOPES = 16
"""Largest number of envelopes that are looked at for one bundle: each is a download and a check."""


def put_bundle(target: ImageTarget, path: Path, verified: Accepted, offset: int) -> Document:
    """Stores a bundle file whose envelope and pack were checked, without a tag; returns its manifest.

    ``offset``: position of the pack in the file. What is there already is not sent again.
    """
    statement, pack = verified.manifest.statement, verified.manifest.pack
    envelope = Descriptor(DSSE, Digest.of(verified.envelope), len(verified.envelope))
    document = manifest(
        [Descriptor(PACK, pack.digest, pack.size, annotations={TITLE: "pack"}), envelope],
        artifact_type=BUNDLE,
        annotations={
            "vnd.cachesvc.name": str(statement.full_name),
            "vnd.cachesvc.target": str(statement.target),
            "vnd.cachesvc.revision": str(verified.revision),
        },
    )
    target.put_blob(Blob.of(EMPTY, EMPTY_BYTES))
    target.put_blob(Blob(document.entries[0], lambda: pack_chunks(path, offset, pack.size)))
    target.put_blob(Blob.of(envelope, verified.envelope))
    target.put_document(document)
    target.put_document(manifest([envelope], artifact_type=ENVELOPE, subject=document.descriptor))
    return document


def tag_bundles(target: ImageTarget, documents: list[Document], tag: str) -> Document:
    """Stores a tag that names one bundle, or an index of several; returns what the tag names. To be called
    last: a tag never names what is not there."""
    if len(documents) == 1:
        named = documents[0]
    else:
        rows = sorted((document.descriptor for document in documents), key=lambda row: row.digest)
        named = index(rows, artifact_type=BUNDLE)
    target.put_document(named, tag)
    return named


def find_bundles(source: ImageSource, document: Document, what: str) -> list[Document]:
    """Returns the manifests of the bundles that a tag names.

    Raises ``InvalidRequest`` for what is no bundle: an image, a list of platforms, an artifact of others.
    """
    if not document.is_index:
        return [_checked_bundle(document, what)]
    if any(row.artifact_type != BUNDLE for row in document.entries) or not document.entries:
        raise InvalidRequest(
            f"{what}: a list of {len(document.entries)} images, one for each platform, and of no bundles",
            "name one of them by its digest, or push the bundles again",
        )
    if len(document.entries) > MAX_BUNDLES:
        raise InvalidRequest(f"{what}: {len(document.entries)} bundles, more than the {MAX_BUNDLES} allowed")
    named = dict.fromkeys(str(row.digest) for row in document.entries)  # each once, however often it stands
    return [_checked_bundle(source.document(digest), what) for digest in named]


def envelopes(source: ImageSource, document: Document) -> Iterator[bytes]:
    """Yields the envelopes of a bundle, unchecked: the caller passes each to ``trust.accept``. The envelope
    among the layers comes first, then those that refer to the bundle."""
    seen: set[Digest] = set()
    what = f"envelope of {document.descriptor.digest}"
    rows = [row for row in document.entries if row.media_type == DSSE]
    for row in rows[:1]:
        seen.add(row.digest)
        yield read_small(source, row, MAX_ENVELOPE_BYTES, what)
    candidates = [row for row in source.referrers(document.descriptor) if row.artifact_type in ("", ENVELOPE)]
    for referrer in candidates[:MAX_REFERRERS]:
        if len(seen) >= MAX_ENVELOPES:
            return
        try:
            attached = source.document(str(referrer.digest))
        except NotFound:  # a row of an index that outlived its manifest
            continue
        if attached.artifact_type != ENVELOPE or attached.subject is None or len(attached.entries) != 1:
            continue
        row = attached.entries[0]
        if attached.subject.digest == document.descriptor.digest and row.digest not in seen:
            seen.add(row.digest)
            yield read_small(source, row, MAX_ENVELOPE_BYTES, what)


def pack_of(document: Document, verified: Accepted, what: str) -> Descriptor:
    """Returns the layer with the pack, if it is the one that was signed. Raises ``Untrusted``."""
    layer, pack = document.entries[0], verified.manifest.pack
    if (layer.digest, layer.size) != (pack.digest, pack.size):
        raise Untrusted(
            f"{what}: its pack is {layer.digest}, and key {verified.signer.short} signed {pack.digest}",
            "somebody put another manifest there; push the bundle again",
        )
    return layer


def pack_chunks(path: Path, offset: int, size: int) -> Iterator[bytes]:
    """Yields the pack of a bundle file."""
    with open(path, "rb") as file:
        yield from file_chunks(file, offset, size)


def _checked_bundle(document: Document, what: str) -> Document:
    if document.artifact_type != BUNDLE or document.is_index:
        raise InvalidRequest(
            f"{what}: {document.artifact_type[:100]!r} is no bundle of cachesvc",
            "an image of MCV needs --format mcv",
        )
    if document.descriptor.size > MAX_BUNDLE_MANIFEST_BYTES:
        raise Corrupt(
            f"{what}: a bundle's manifest of {document.descriptor.size} bytes, more than the "
            f"{MAX_BUNDLE_MANIFEST_BYTES} allowed"
        )
    layers = document.entries
    if not 1 <= len(layers) <= 2 or layers[0].media_type != PACK or layers[0].size > MAX_PACK_BYTES:
        raise Corrupt(f"{what}: a bundle whose layers are not a pack and an envelope")
    return document
