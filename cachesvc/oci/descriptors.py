"""Defines descriptors, manifests and indexes of OCI images, and reads them as hostile input.

Nobody has signed these records. They are bounded before they are parsed, and only say where bytes are:
whether the bytes count is decided by a digest or a signature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, TooLarge

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
"""Media types of manifests that are read."""
INDEXES = (OCI_INDEX, DOCKER_LIST)
"""Media types of lists of manifests that are read."""
EMPTY_JSON = "application/vnd.oci.empty.v1+json"
"""Media type of the empty configuration of an artifact."""
EMPTY_BYTES = b"{}"
"""The content with that media type."""
BUNDLE = "application/vnd.cachesvc.bundle.v1"
"""Artifact type of a bundle, and of a list of bundles."""
PACK = "application/vnd.cachesvc.pack.v1"
"""Media type of the one layer of a bundle: its pack."""
ENVELOPE = "application/vnd.cachesvc.manifest.v1+dsse"
"""Artifact type of the signed manifest of a bundle, which refers to the bundle."""
DSSE = "application/vnd.dsse.envelope.v1+json"
"""Media type of a DSSE envelope."""
TITLE = "org.opencontainers.image.title"
"""Annotation with the file name of a layer."""
REF_NAME = "org.opencontainers.image.ref.name"
"""Annotation with the tag of a manifest in an image layout."""

MAX_MANIFEST_BYTES = 4 << 20
"""Largest number of bytes of a manifest or an index: what registries accept at most."""
MAX_ENTRIES = 1024
"""Largest number of layers of a manifest, or of manifests in an index."""
MAX_BLOB_BYTES = 64 << 30
"""Largest number of bytes of a blob."""
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Names content by type, digest and size. ``artifact_type`` and ``annotations`` as its writer claims."""

    media_type: str
    digest: Digest
    size: int
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """Returns the object that stands in manifests and indexes."""
        value: dict[str, Any] = {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return value


EMPTY = Descriptor(EMPTY_JSON, Digest.of(EMPTY_BYTES), len(EMPTY_BYTES))
"""Describes the empty configuration."""


@dataclass(frozen=True, slots=True)
class Document:
    """Holds a manifest or an index: its exact bytes and what they say. ``entries``: the layers of a manifest,
    or the manifests of an index."""

    descriptor: Descriptor
    data: bytes
    entries: tuple[Descriptor, ...]
    config: Descriptor | None = None
    subject: Descriptor | None = None

    @property
    def is_index(self) -> bool:
        """Returns whether this is a list of manifests."""
        return self.descriptor.media_type in INDEXES

    @property
    def artifact_type(self) -> str:
        """Returns what the manifest claims to be; the type of its configuration if it names nothing else."""
        return self.descriptor.artifact_type or (self.config.media_type if self.config else "")


def manifest(
    layers: list[Descriptor],
    *,
    config: Descriptor = EMPTY,
    artifact_type: str = "",
    subject: Descriptor | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """Makes a manifest. Deterministic: equal arguments make equal bytes."""
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": config.encode(),
        "layers": [layer.encode() for layer in layers],
    }
    if artifact_type:
        value["artifactType"] = artifact_type
    if subject is not None:
        value["subject"] = Descriptor(subject.media_type, subject.digest, subject.size).encode()
    if annotations:
        value["annotations"] = dict(annotations)
    return _document(OCI_MANIFEST, value)


def index(
    manifests: list[Descriptor], *, artifact_type: str = "", annotations: Mapping[str, str] | None = None
) -> Document:
    """Makes an index. Deterministic: equal arguments make equal bytes."""
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [one.encode() for one in manifests],
    }
    if artifact_type:
        value["artifactType"] = artifact_type
    if annotations:
        value["annotations"] = dict(annotations)
    return _document(OCI_INDEX, value)


def read_document(data: bytes, media_type: str, what: str) -> Document:
    """Reads a manifest or an index of a media type. ``what``: begins the messages.

    Raises ``InvalidRequest`` for another media type, ``TooLarge``, and ``Corrupt`` for a form that is not
    read.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise TooLarge(f"{what}: {len(data)} bytes, more than the {MAX_MANIFEST_BYTES} of a manifest")
    if media_type not in (*MANIFESTS, *INDEXES):
        raise InvalidRequest(
            f"{what}: media type {media_type[:100]!r} is neither a manifest nor an index of an image",
            "name an image or artifact of OCI",
        )
    try:
        value = codec.parse_json(data, limit=MAX_MANIFEST_BYTES, what=what)
        return _read(data, value, media_type)
    except ValueError as error:
        text = str(error)
        raise Corrupt(text if text.startswith(what) else f"{what}: {text}") from None


def read_descriptor(value: object) -> Descriptor:
    """Reads a descriptor. Raises ``ValueError``."""
    if not isinstance(value, dict):
        raise ValueError("a descriptor is no object")
    media_type, digest, size = (value.get(name) for name in ("mediaType", "digest", "size"))
    if not isinstance(media_type, str) or not _MEDIA_TYPE.fullmatch(media_type):
        raise ValueError("a descriptor without a media type")
    if not isinstance(digest, str) or not digest.startswith("sha256:"):
        raise ValueError("a digest that is not sha256")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_BLOB_BYTES:
        raise ValueError("a size out of range")
    artifact_type = value.get("artifactType", "")
    return Descriptor(
        media_type,
        Digest(digest),
        size,
        artifact_type if isinstance(artifact_type, str) else "",
        read_texts(value.get("annotations")),
    )


def read_texts(value: object) -> dict[str, str]:
    """Reads annotations or labels. Raises ``ValueError`` for what is no object of texts."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
        raise ValueError("annotations or labels that are no object")
    if not all(isinstance(text, str) for text in value.values()):
        raise ValueError("an annotation or label that is no text")
    return dict(value)


def _document(media_type: str, value: dict[str, Any]) -> Document:
    data = codec.canonical(value)
    return _read(data, value, media_type)


def _read(data: bytes, value: Any, media_type: str) -> Document:
    if not isinstance(value, dict) or value.get("schemaVersion") != 2:
        raise ValueError("no manifest of schema version 2")
    if value.get("mediaType", media_type) != media_type:
        raise ValueError(f"it says {str(value['mediaType'])[:100]!r}, and was announced as {media_type}")
    # A document that has the lists of both kinds would mean different things to two readers (CVE-2021-41190).
    if "manifests" in value and ("layers" in value or "config" in value):
        raise ValueError("both a manifest and an index")
    entries = value.get("manifests" if media_type in INDEXES else "layers")
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise ValueError(f"no list of at most {MAX_ENTRIES} descriptors")
    artifact_type = value.get("artifactType", "")
    if not isinstance(artifact_type, str):
        raise ValueError("artifactType: text is expected")
    config = value.get("config")
    if media_type in MANIFESTS and config is None:
        raise ValueError("a manifest without config")
    subject = value.get("subject")
    return Document(
        Descriptor(
            media_type, Digest.of(data), len(data), artifact_type, read_texts(value.get("annotations"))
        ),
        data,
        tuple(map(read_descriptor, entries)),
        read_descriptor(config) if config is not None else None,
        read_descriptor(subject) if subject is not None else None,
    )
