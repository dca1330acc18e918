"""Writes an image whose one layer holds bundle files, for a cluster that mounts images as volumes.

The files are what `attach` takes (``CACHESVC_BUNDLE``), and their signatures are checked when a service
starts. The image itself needs no trust.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import StorageFull

from .descriptors import Descriptor, Document, manifest
from .mcv import CONFIG
from .places import CHUNK, Blob, ImageTarget
from .tar_stream import END, filling, header_of

_LAYER = "application/vnd.oci.image.layer.v1.tar"
"""Media type of a layer that is not compressed: packs are."""


def put_volume_image(target: ImageTarget, files: Sequence[tuple[str, Path]]) -> Document:
    """Stores the image of checked bundle files, each with its name in the image, without a tag.

    Deterministic. Raises ``StorageFull`` if a file cannot be read.
    """
    rows = sorted(files)
    hasher, size = hashlib.sha256(), 0
    for chunk in _layer(rows):
        hasher.update(chunk)
        size += len(chunk)
    layer = Descriptor(_LAYER, Digest(f"sha256:{hasher.hexdigest()}"), size)
    config = canonical(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [str(layer.digest)]},
        }
    )
    described = Descriptor(CONFIG, Digest.of(config), len(config))
    target.put_blob(Blob.of(described, config))
    target.put_blob(Blob(layer, lambda: _layer(rows)))
    document = manifest([layer], config=described)
    target.put_document(document)
    return document


def _layer(files: Sequence[tuple[str, Path]]) -> Iterator[bytes]:
    for name, path in files:
        try:
            with open(path, "rb") as file:
                size = path.stat().st_size
                yield header_of(name, size)
                while chunk := file.read(CHUNK):
                    yield chunk
                yield filling(size)
        except OSError as error:
            raise StorageFull(f"{path}: {error.strerror or error}") from None
    yield END
