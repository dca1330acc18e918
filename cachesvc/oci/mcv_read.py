"""Reads an image of MCV, which nobody has signed: its files, after everything about them was checked.

The files become a bundle only under a key of the user who imports them: see `commands.oci_mcv`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.kinds import KINDS
from cachesvc_client.kinds.rules import FileRule, KindRules
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, StorageFull
from cachesvc_client.wire.manifest.records import MAX_FILES, MAX_RAW_BYTES

from .descriptors import Document, read_texts
from .mcv import LAYERS, MAX_METADATA_BYTES, CacheFormat, format_of, targets
from .places import ImageSource, read_small
from .tar_stream import BLOCK, Entry, TarReader

_MAX_CONFIG_BYTES = 1 << 20
_FREE_BYTES, _MAX_RATIO = 256 << 20, 256
"""Number of unpacked bytes that every layer may have, and those for each of its bytes: as for packs."""
_ENTRY_BYTES = 4 * BLOCK
"""Bytes of a tar file that one entry may need beside its content, on average."""
_CHUNK = 1 << 20
_GZIP = 31
"""What zlib calls the format of gzip."""


@dataclass(frozen=True, slots=True)
class McvImage:
    """Holds what an image has. ``files``: those that its kind knows; the others are in ``left_out``.
    ``targets``: the GPUs for which it was compiled. ``host_code``: whether it has libraries of the host."""

    cache: CacheFormat
    files: tuple[SourceFile, ...]
    left_out: tuple[str, ...]
    targets: tuple[Mapping[str, Any], ...]

    @property
    def host_code(self) -> bool:
        """Returns whether a file is code for the host's CPU."""
        return any(file.path.endswith(".so") for file in self.files)


def read_mcv(source: ImageSource, document: Document, scratch: Path, what: str) -> McvImage:
    """Returns the files of an image. ``scratch``: an empty folder, in which the files stay until they are
    packed.

    Raises ``InvalidRequest`` for what is no such image, and ``Corrupt`` for a layer that is not as its
    labels say or that has a path, a link or a number of bytes that no such image has.
    """
    if document.is_index:
        raise InvalidRequest(
            f"{what}: a list of {len(document.entries)} images, one for each platform",
            "name one of them by its digest",
        )
    if len(document.entries) != 1 or document.entries[0].media_type not in LAYERS:
        types = ", ".join(sorted({row.media_type for row in document.entries}))[:200]
        raise InvalidRequest(f"{what}: an image of MCV has one gzip layer, this one has {types or 'none'}")
    labels = _labels(source, document, what)
    cache = format_of(labels, what)
    layer, size = document.entries[0], _count(labels, cache.label("cache-size-bytes"), what)
    allowed = min(MAX_RAW_BYTES, _FREE_BYTES + _MAX_RATIO * layer.size)
    if size > allowed:
        raise Corrupt(f"{what}: {size} bytes in {layer.size} bytes of gzip, more than the {allowed} allowed")
    path = scratch / "layer"
    try:
        with open(path, "wb") as out:
            for chunk in source.chunks(layer):  # checked as a whole before a byte of it is unpacked
                out.write(chunk)
        with open(path, "rb") as file:
            unpacked = _Unpacked(file, what, size + MAX_METADATA_BYTES + _ENTRY_BYTES * MAX_FILES)
            reader = _Reader(cache, TarReader(unpacked, what, 2 * MAX_FILES), scratch, what, size)
            reader.read()
    except OSError as error:
        raise StorageFull(f"{scratch}: cannot be written: {error.strerror or error}") from None
    path.unlink()
    return reader.image(labels)


def _labels(source: ImageSource, document: Document, what: str) -> dict[str, str]:
    if document.config is None:
        raise Corrupt(f"{what}: an image without configuration")
    data = read_small(source, document.config, _MAX_CONFIG_BYTES, f"{what}: configuration")
    try:
        value = codec.parse_json(data, limit=_MAX_CONFIG_BYTES, what=f"{what}: configuration")
        inner = value.get("config") if isinstance(value, dict) else None
        return read_texts(inner.get("Labels")) if isinstance(inner, dict) else {}
    except ValueError as error:
        raise Corrupt(f"{what}: {error}") from None


def _count(labels: Mapping[str, str], name: str, what: str) -> int:
    text = labels.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 15):
        raise Corrupt(f"{what}: the label {name} is {text[:40]!r}, a number is expected")
    return int(text)


class _Reader:
    """Reads the entries of one layer."""

    def __init__(self, cache: CacheFormat, tar: TarReader, scratch: Path, what: str, size: int) -> None:
        self._cache, self._tar, self._scratch, self._what, self._size = cache, tar, scratch, what, size
        self._rules: KindRules = next(kind.rules for kind in KINDS if kind.name == cache.kind)
        self._names: set[str] = set()
        self._read_bytes = 0
        self._files: list[SourceFile] = []
        self._left_out: list[str] = []
        self._metadata: list[tuple[str, bytes]] = []

    def read(self) -> None:
        """Reads all entries."""
        for entry in self._tar.entries():
            name = _checked_name(entry, self._what)
            if entry.folder:
                continue
            if name in self._names:
                raise Corrupt(f"{self._what}: {name[:120]!r} stands twice in the layer")
            self._names.add(name)
            if len(self._names) > MAX_FILES:
                raise Corrupt(f"{self._what}: more than the {MAX_FILES} files allowed")
            if name == self._cache.list_path:
                self._whole(entry)  # nothing of it is needed: the kernels describe themselves
            elif name.startswith(self._cache.files):
                self._add(entry, name.removeprefix(self._cache.files))
            else:
                raise Corrupt(f"{self._what}: {name[:120]!r} lies outside of {self._cache.files}")
        if self._read_bytes != self._size:
            raise Corrupt(
                f"{self._what}: the files have {self._read_bytes} bytes, the label says {self._size}"
            )

    def image(self, labels: Mapping[str, str]) -> McvImage:
        """Returns what was read, if it is what the labels say."""
        records = self._cache.records(self._metadata)
        count = _count(labels, self._cache.label("entry-count"), self._what)
        if len(records) != count:
            raise Corrupt(f"{self._what}: {len(records)} kernels, the label says {count}")
        if not records:
            raise Corrupt(f"{self._what}: no kernel")
        built = targets(records)
        if _summary(labels.get(self._cache.label("summary"), ""), self._what) != built:
            raise Corrupt(f"{self._what}: the kernels are for other targets than the summary says")
        return McvImage(self._cache, tuple(self._files), tuple(self._left_out), tuple(built))

    def _add(self, entry: Entry, path: str) -> None:
        self._read_bytes += entry.size
        if self._read_bytes > self._size:
            raise Corrupt(f"{self._what}: more than the {self._size} bytes that the label says")
        rule = self._rules.rule(path)
        if rule is None:
            self._left_out.append(path)
        elif rule.portable is not None or self._cache.metadata.fullmatch(path):
            data = self._portable(rule, self._whole(entry), path)
            self._files.append(SourceFile(self._cache.kind, path, data))
            if rule.portable is None:
                self._metadata.append((path, data))
        else:
            place = self._scratch / f"file-{len(self._files)}"
            with open(place, "wb") as out:
                for chunk in self._tar.content():
                    out.write(chunk)
            self._files.append(SourceFile(self._cache.kind, path, place))

    def _portable(self, rule: FileRule, data: bytes, path: str) -> bytes:
        """Returns a file as it travels. Raises ``Corrupt`` for one that no install would accept."""
        if rule.portable is None:
            return data
        root = Path("/")
        try:
            portable = rule.portable(data, root)
            if rule.local is not None:
                rule.local(portable, root)
        except ValueError as error:
            raise Corrupt(f"{self._what}: {path[:120]}: {error}") from None
        return portable

    def _whole(self, entry: Entry) -> bytes:
        if entry.size > MAX_METADATA_BYTES:
            raise Corrupt(f"{self._what}: {entry.name[:120]!r}: {entry.size} bytes of metadata")
        return b"".join(self._tar.content())


def _checked_name(entry: Entry, what: str) -> str:
    """Returns the path of an entry. Raises ``Corrupt`` for one that leads elsewhere."""
    name = entry.name.removeprefix("./")
    parts = PurePosixPath(name.rstrip("/")).parts if entry.folder else tuple(name.split("/"))
    if entry.folder and not parts:  # the root itself
        return ""
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..", "/") for part in parts):
        raise Corrupt(f"{what}: the path {entry.name[:120]!a} leads out of the layer, or is none")
    return name


def _summary(text: str, what: str) -> list[dict[str, Any]]:
    try:
        value = codec.parse_json(text.encode(), limit=_MAX_CONFIG_BYTES, what="summary")
        return targets(value["targets"])
    except (ValueError, LookupError, TypeError):
        raise Corrupt(f"{what}: the summary names no targets") from None


class _Unpacked:
    """Gives the bytes of gzip members, with bounded memory and no more than ``limit`` of them."""

    def __init__(self, file: BinaryIO, what: str, limit: int) -> None:
        self._pieces, self._what, self._left = self._unpack(file), what, limit
        self._piece, self._position = b"", 0

    def read(self, size: int, /) -> bytes:
        """Returns exactly ``size`` bytes, or fewer at the end."""
        parts: list[bytes] = []
        while size:
            if self._position == len(self._piece):
                self._piece, self._position = next(self._pieces, b""), 0
                self._left -= len(self._piece)
                if self._left < 0:
                    raise Corrupt(f"{self._what}: the layer unpacks to far more than its labels say")
                if not self._piece:
                    break
            parts.append(self._piece[self._position : self._position + size])
            self._position += len(parts[-1])
            size -= len(parts[-1])
        return b"".join(parts)

    def _unpack(self, file: BinaryIO) -> Iterator[bytes]:
        gzip, data = zlib.decompressobj(_GZIP), file.read(_CHUNK)
        try:
            while data or not gzip.eof:
                if gzip.eof:  # another member follows
                    gzip = zlib.decompressobj(_GZIP)
                piece = gzip.decompress(data, _CHUNK)
                data = gzip.unused_data if gzip.eof else gzip.unconsumed_tail
                if piece:
                    yield piece
                elif not gzip.eof and not data and not (data := file.read(_CHUNK)):
                    raise Corrupt(f"{self._what}: the layer ends early")
                data = data or file.read(_CHUNK) if gzip.eof else data
        except zlib.error as error:
            raise Corrupt(f"{self._what}: the layer is not gzip: {error}") from None
