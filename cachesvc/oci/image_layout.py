"""Reads and writes OCI image layouts: a folder, or a tar file with the same files.

Source: image-layout.md of the OCI image specification 1.1. Manifests that refer to others stand in
``index.json`` beside those with a tag, where other tools look for them too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from cachesvc_client.atomic import replacing
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, NotFound, StorageFull

from .descriptors import (
    MAX_ENTRIES,
    MAX_MANIFEST_BYTES,
    OCI_INDEX,
    REF_NAME,
    Descriptor,
    Document,
    index,
    read_document,
)
from .places import CHUNK, Blob, checked
from .tar_stream import END, TarReader, filling, header_of

LAYOUT_FILE, INDEX_FILE = "oci-layout", "index.json"
"""Names of the file that says what the folder is, and of the list of its manifests."""
LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
"""Content of the first of them."""
_MAX_TAR_ENTRIES = 65_536


class LayoutFiles(Protocol):
    """Gives the files of a layout by their relative names."""

    where: str

    def open(self, name: str) -> tuple[int, Iterator[bytes]]:
        """Returns a file's size and its pieces. Raises ``NotFound``, ``Corrupt`` for what is no plain
        file."""
        ...


class ImageLayout:
    """A layout that is read, as `places` defines a source."""

    def __init__(self, files: LayoutFiles) -> None:
        self._files, self.where = files, files.where
        layout = codec_object(self._small(LAYOUT_FILE), f"{self.where}: {LAYOUT_FILE}")
        if str(layout.get("imageLayoutVersion")) != "1.0.0":
            raise InvalidRequest(
                f"{self.where}: {LAYOUT_FILE} names no version that is read", "1.0.0 is read"
            )
        self._index = read_document(self._small(INDEX_FILE), OCI_INDEX, f"{self.where}: {INDEX_FILE}")
        self._subjects: dict[Digest, tuple[Digest | None, str]] = {}

    def document(self, name: str) -> Document:
        """Returns the manifest of a tag or digest. Raises ``NotFound``; for an empty tag the layout must hold
        one image, else ``InvalidRequest`` with the tags."""
        if ":" in name:
            rows = [row for row in self._index.entries if row.digest == name]
            return self._read(rows[0].digest if rows else Digest(name), rows[0].media_type if rows else "")
        tagged = [row for row in self._index.entries if row.annotations.get(REF_NAME)]
        tags = sorted({row.annotations[REF_NAME] for row in tagged if not is_attachment(row)})
        rows = [
            row
            for row in tagged
            if row.annotations[REF_NAME] == (name or (tags[0] if len(tags) == 1 else ""))
        ]
        if not rows and not name and len(self._index.entries) == 1:
            rows = list(self._index.entries)
        if not rows and not name:
            raise InvalidRequest(
                f"{self.where}: holds {len(tags)} images", f"name one with --tag: {', '.join(tags)[:200]}"
            )
        if not rows:
            raise NotFound(f"{self.where}: no image {name!r}", f"it holds: {', '.join(tags)[:200]}")
        return self._read(rows[0].digest, rows[0].media_type)

    def chunks(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yields the pieces of a blob, which is checked at the end."""
        size, chunks = self._files.open(_blob_name(descriptor.digest))
        if size != descriptor.size:
            raise Corrupt(
                f"{self.where}: blob {descriptor.digest}: {size} bytes, its descriptor says {descriptor.size}"
            )
        return checked(chunks, descriptor, self.where)

    def referrers(self, subject: Descriptor) -> list[Descriptor]:
        """Returns the manifests in ``index.json`` that say that they refer to a manifest, and those of an
        index of referrers, which a registry without a list of its own leaves behind."""
        rows: list[Descriptor] = []
        for row in self._index.entries:
            if row.annotations.get(REF_NAME) == f"sha256-{subject.digest.hex}":
                rows += self._read(row.digest, row.media_type).entries
            elif row.digest != subject.digest:
                of, artifact_type = self._subject(row)
                if of == subject.digest:
                    rows.append(
                        Descriptor(row.media_type, row.digest, row.size, artifact_type, row.annotations)
                    )
        return list({row.digest: row for row in rows}.values())

    def _subject(self, row: Descriptor) -> tuple[Digest | None, str]:
        """Return what a manifest refers to, and its artifact type. Each is read once for all bundles."""
        if row.digest not in self._subjects:
            document = self._read(row.digest, row.media_type)
            of = document.subject.digest if document.subject is not None else None
            self._subjects[row.digest] = of, document.artifact_type
        return self._subjects[row.digest]

    def _read(self, digest: Digest, media_type: str) -> Document:
        data = self._small(_blob_name(digest))
        what = f"{self.where}: {digest}"
        if Digest.of(data) != digest:
            raise Corrupt(f"{what}: the bytes have another digest")
        media_type = media_type or str(codec_object(data, what).get("mediaType", ""))
        return read_document(data, media_type, what)

    def _small(self, name: str) -> bytes:
        size, chunks = self._files.open(name)
        if size > MAX_MANIFEST_BYTES:
            raise Corrupt(
                f"{self.where}: {name}: {size} bytes, more than the {MAX_MANIFEST_BYTES} of a manifest"
            )
        return b"".join(chunks)


class FolderFiles:
    """The files of a layout that is a folder. A link is no file of it: it may lead elsewhere."""

    def __init__(self, root: Path) -> None:
        self.where, self._root = str(root), root

    def open(self, name: str) -> tuple[int, Iterator[bytes]]:
        """Returns a file's size and its pieces."""
        path = self._root / name
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"{self.where}: there is no {name}", "is it an OCI image layout?") from None
        except OSError as error:
            raise Corrupt(f"{path}: {error.strerror or error}") from None
        file = os.fdopen(handle, "rb")
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            file.close()
            raise Corrupt(f"{path}: no plain file")
        return facts.st_size, _pieces(file, facts.st_size)


class TarFiles:
    """The files of a layout that is a tar file, which is read by the places of its entries."""

    def __init__(self, path: Path) -> None:
        self.where, self._path = str(path), path
        self._places: dict[str, tuple[int, int]] = {}
        with open(path, "rb") as file:
            for entry in TarReader(file, self.where, _MAX_TAR_ENTRIES).entries():
                name = entry.name.removeprefix("./")
                if not entry.folder and name in self._places:
                    raise Corrupt(f"{self.where}: {name[:120]!r} stands twice in it")
                if not entry.folder:
                    self._places[name] = (entry.offset, entry.size)

    def open(self, name: str) -> tuple[int, Iterator[bytes]]:
        """Returns a file's size and its pieces."""
        if name not in self._places:
            raise NotFound(f"{self.where}: there is no {name}", "is it an OCI image layout?")
        offset, size = self._places[name]
        file = open(self._path, "rb")  # noqa: SIM115
        file.seek(offset)
        return size, _pieces(file, size)


def open_layout(path: Path) -> ImageLayout:
    """Opens a layout: a folder or a tar file. Raises ``NotFound``, ``Corrupt``, ``InvalidRequest``."""
    try:
        return ImageLayout(FolderFiles(path) if path.is_dir() else TarFiles(path))
    except OSError as error:
        raise NotFound(f"image layout {path}: {error.strerror or error}") from None


class _Rows:
    """Collects the rows of ``index.json``: as `places` defines a target, over ``put_blob`` of a subclass."""

    def __init__(self, rows: list[Descriptor]) -> None:
        self.rows = rows

    def put_blob(self, blob: Blob) -> bool:
        """Stores a blob; returns whether it had to be written."""
        raise NotImplementedError

    def put_document(self, document: Document, tag: str = "") -> None:
        """Stores a manifest, and lists it if it has a tag or refers to another one."""
        descriptor = document.descriptor
        self.put_blob(Blob.of(descriptor, document.data))
        if not tag and document.subject is None:
            return
        row = Descriptor(
            descriptor.media_type,
            descriptor.digest,
            descriptor.size,
            descriptor.artifact_type,
            {REF_NAME: tag} if tag else {},
        )
        self.rows = [
            one
            for one in self.rows
            if (one.digest != row.digest or (tag and one.annotations.get(REF_NAME)))
            and (not tag or one.annotations.get(REF_NAME) != tag)
        ]
        self.rows.append(row)


class FolderTarget(_Rows):
    """A folder that becomes a layout, or to which images are added. One that a write left unfinished has
    blobs alone, and the next write goes on with it."""

    def __init__(self, root: Path) -> None:
        rows: list[Descriptor] = []
        if (root / LAYOUT_FILE).exists():
            rows = list(ImageLayout(FolderFiles(root))._index.entries)
        elif root.is_dir() and any(one.name != "blobs" for one in root.iterdir()):
            raise InvalidRequest(
                f"{root}: a folder with other files", "name a new folder, or an image layout"
            )
        super().__init__(rows)
        self._root = root

    def put_blob(self, blob: Blob) -> bool:
        """Stores a blob, whole or not at all."""
        path = self._root / _blob_name(blob.descriptor.digest)
        if path.is_file() and path.stat().st_size == blob.descriptor.size:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as out:
            for chunk in checked(blob.chunks(), blob.descriptor, str(path)):
                out.write(chunk)
        return True

    def close(self) -> None:
        """Writes the list of images, last: what it names is there."""
        for name, data in ((LAYOUT_FILE, LAYOUT), (INDEX_FILE, index(self.rows).data)):
            with replacing(self._root / name) as out:
                out.write(data)


class TarTarget(_Rows):
    """A tar file that becomes a layout."""

    def __init__(self, out: BinaryIO) -> None:
        super().__init__([])
        self._out = out
        self._written: set[Digest] = set()
        self._add(LAYOUT_FILE, LAYOUT)

    def put_blob(self, blob: Blob) -> bool:
        """Stores a blob."""
        descriptor = blob.descriptor
        if descriptor.digest in self._written:
            return False
        self._written.add(descriptor.digest)
        self._out.write(header_of(_blob_name(descriptor.digest), descriptor.size))
        for chunk in checked(blob.chunks(), descriptor, "what is written"):
            self._out.write(chunk)
        self._out.write(filling(descriptor.size))
        return True

    def close(self) -> None:
        """Writes the list of images and the end."""
        self._add(INDEX_FILE, index(self.rows).data)
        self._out.write(END)

    def _add(self, name: str, data: bytes) -> None:
        self._out.write(header_of(name, len(data)) + data + filling(len(data)))


@contextmanager
def layout_target(path: Path) -> Iterator[FolderTarget | TarTarget]:
    """Opens a layout that is written: a tar file if the name ends with ``.tar``, else a folder. The tar
    file is whole or absent. Raises ``StorageFull``, ``InvalidRequest``."""
    try:
        if path.suffix == ".tar":
            with replacing(path) as out:
                target = TarTarget(out)
                yield target
                target.close()
            return
        folder = FolderTarget(path)
        yield folder
        folder.close()
    except OSError as error:
        raise StorageFull(f"{path}: cannot be written: {error.strerror or error}") from None


def is_attachment(row: Descriptor) -> bool:
    """Returns whether a tag is one under which registries without a list of referrers keep signatures."""
    tag = row.annotations.get(REF_NAME, "")
    return tag.startswith("sha256-") and len(tag) >= 71


def codec_object(data: bytes, what: str) -> dict[str, object]:
    """Returns a JSON object. Raises ``Corrupt``."""
    try:
        value = codec.parse_json(data, limit=MAX_MANIFEST_BYTES, what=what)
    except ValueError as error:
        raise Corrupt(str(error)) from None
    if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
        raise Corrupt(f"{what}: no object")
    return value


def _blob_name(digest: Digest) -> str:
    return f"blobs/sha256/{digest.hex}"


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    with file:
        while size and (chunk := file.read(min(CHUNK, size))):
            size -= len(chunk)
            yield chunk
