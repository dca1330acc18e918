"""Writes an image of MCV from a bundle: one gzip layer, a configuration with labels, a manifest."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cachesvc_client.bundle.pack import PackReader
from cachesvc_client.http.uploads import file_chunks
from cachesvc_client.kinds import KINDS
from cachesvc_client.kinds.rules import KindRules
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.manifest.records import FileRecord

from .descriptors import Descriptor, Document, manifest
from .mcv import CONFIG, FORMATS, MAX_METADATA_BYTES, OCI_LAYER, CacheFormat
from .places import Blob, ImageTarget
from .tar_stream import END, filling, header_of

_LEVEL = 6
"""Level of gzip."""
_GZIP = 31
"""What zlib calls the format of gzip; it writes no time."""


@dataclass(frozen=True, slots=True)
class WrittenImage:
    """Describes an image that was written. ``left_out``: number of the bundle's files of other kinds."""

    document: Document
    files: int
    left_out: int


def put_mcv(
    target: ImageTarget, reader: PackReader, scratch: Path, *, kserve: bool = False, folder: str = ""
) -> WrittenImage:
    """Stores the image of a checked bundle, without a tag.

    ``scratch``: an empty folder for the layer. ``kserve``: adds the labels of KServe. ``folder``: where the
    files are mounted, which Triton's group files name; by default the compiler's own folder for root.
    Deterministic under one version of zlib. Raises ``InvalidRequest`` for a bundle without files that such an
    image holds.
    """
    cache, files = _files_of(reader)
    folder = folder or cache.folder
    if not folder.startswith("/"):
        raise InvalidRequest(
            f"folder {folder[:80]!r}: not absolute", "name the folder where the files are mounted"
        )
    rules = next(kind.rules for kind in KINDS if kind.name == cache.kind)
    records = cache.records(
        (file.path, reader.read(file))
        for file in files
        if cache.metadata.fullmatch(file.path) and file.size <= MAX_METADATA_BYTES
    )
    if not records:
        raise InvalidRequest("the bundle's files describe no kernel, and an image of MCV lists them")
    path = scratch / "layer"
    with open(path, "wb") as out:
        layer = _Layer(out)
        size = _write(layer, cache, rules, reader, files, Path(folder))
        layer.add(cache.list_path, canonical({cache.name: records}))
        descriptor = layer.close()
    labels = cache.labels(records, size)
    if kserve:
        labels.update(cache.kserve_labels(records, folder))
    config = _config(labels, layer.diff_id)
    described = Descriptor(CONFIG, Digest.of(config), len(config))
    target.put_blob(Blob.of(described, config))
    target.put_blob(Blob(descriptor, lambda: layer_chunks(path, descriptor.size)))
    document = manifest([descriptor], config=described)
    target.put_document(document)
    return WrittenImage(document, len(files), len(reader.manifest.files) - len(files))


def layer_chunks(path: Path, size: int) -> Iterator[bytes]:
    """Yields the layer."""
    return file_chunks(path, 0, size)


def _files_of(reader: PackReader) -> tuple[CacheFormat, list[FileRecord]]:
    for cache in FORMATS:
        files = [file for file in reader.manifest.files if file.kind == cache.kind]
        if files:
            return cache, sorted(files, key=lambda file: file.path)
    kinds = sorted({file.kind for file in reader.manifest.files})
    raise InvalidRequest(
        f"the bundle holds files of {', '.join(kinds)[:120]}, and an image of MCV holds Triton's kernels",
        "push it as a bundle",
    )


def _write(
    layer: _Layer,
    cache: CacheFormat,
    rules: KindRules,
    reader: PackReader,
    files: list[FileRecord],
    root: Path,
) -> int:
    """Writes the files, and returns the number of their bytes. What names absolute paths gets ``root``."""
    size = 0
    for file in files:
        rule = rules.rule(file.path)
        name = cache.files + file.path
        if rule is not None and rule.local is not None:
            try:
                data = rule.local(reader.read(file), root)
            except ValueError as error:
                raise InvalidRequest(f"{file.kind}/{file.path}: {error}") from None
            layer.add(name, data, file.mode)
            size += len(data)
        else:
            layer.begin(name, file.size, file.mode)
            for chunk in reader.chunks(file):
                layer.write(chunk)
            layer.write(filling(file.size))
            size += file.size
    return size


class _Layer:
    """Writes a tar file through gzip, and knows the digests of both."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._gzip = out, zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._plain, self._stored, self._size = hashlib.sha256(), hashlib.sha256(), 0

    @property
    def diff_id(self) -> str:
        """Returns the digest of the tar file."""
        return f"sha256:{self._plain.hexdigest()}"

    def begin(self, name: str, size: int, mode: int = 0o644) -> None:
        """Writes the header of a file."""
        self.write(header_of(name, size, mode))

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Writes a whole file."""
        self.begin(name, len(data), mode)
        self.write(data)
        self.write(filling(len(data)))

    def write(self, data: bytes | memoryview) -> None:
        """Writes bytes of the tar file."""
        self._plain.update(data)
        self._store(self._gzip.compress(data))

    def close(self) -> Descriptor:
        """Writes the end, and returns what describes the layer."""
        self.write(END)
        self._store(self._gzip.flush())
        return Descriptor(OCI_LAYER, Digest(f"sha256:{self._stored.hexdigest()}"), self._size)

    def _store(self, data: bytes) -> None:
        self._stored.update(data)
        self._size += len(data)
        self._out.write(data)


def _config(labels: dict[str, str], diff_id: str) -> bytes:
    return canonical(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }
    )
