"""Write a backup of a registry that may be serving, and restore one into an empty registry.

A backup is a folder: the rows of the index by table, the packs that they name, private keys, and
``backup.json``, which says what is in it, with digests. The folder gets its name last, so a backup that was
killed has another. The index is read first: the collector keeps a pack for the grace after its last mention,
and a pack that is gone all the same ends the backup with an error.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import cachesvc
from cachesvc.blobs.store import CHUNK_BYTES, BlobStore
from cachesvc.domain.access import ANY
from cachesvc.index.snapshot import TABLES, filling, snapshot
from cachesvc.index.unit import Index
from cachesvc_client.atomic import replacing, sync_folder
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, NotFound, ProtocolMismatch, StorageFull

from ..audit import CONSOLE
from ..inventory import verify_revision
from .fsck import PREFIX

KEYS = ("signing", "root", "targets", "online")
"""Names of the private keys that a backup may hold."""
BACKUP_FORMAT = "cachesvc.backup/1"
_SUMMARY = "backup.json"
_MAX_SUMMARY_BYTES = 1 << 20
_PRIVATE, _PRIVATE_FOLDER = 0o600, 0o700


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """Says what a backup holds. ``created``: seconds of UTC. ``schema``: the migration of its index.
    ``tables``: number of rows by table. ``digests``, ``sizes``: of each file but the packs, whose digests and
    sizes the index has. ``packs``, ``bytes``: number and size of the packs. ``keys``: names of the private
    keys in it."""

    format: str
    release: str
    created: int
    schema: str
    tables: dict[str, int]
    digests: dict[str, str]
    sizes: dict[str, int]
    packs: int
    bytes: int
    keys: tuple[str, ...]

    @property
    def digest(self) -> Digest:
        """Return the digest of the backup, which covers all that it holds: an operator keeps it somewhere
        else. Nothing is read for it from where the backup is: that may have been exchanged."""
        return Digest.of(codec.canonical(self))


@dataclass(frozen=True, slots=True)
class BackupPart:
    """Describes a part of a backup: a table, the packs, or a private key."""

    part: str
    count: int
    bytes: int


def write_backup(index: Index, blobs: BlobStore, folder: Path, keys: Mapping[str, Path]) -> BackupSummary:
    """Writes a backup, which is at ``folder`` when it is whole. ``keys``: private keys that go into it.

    Raises ``InvalidRequest`` for a mirror, and if something is there already, ``StorageFull``, ``Corrupt``
    for a pack that is not what the index says, ``NotFound`` for one that was collected meanwhile.
    """
    with index.read() as unit:
        upstream = unit.mirrors.upstream()
    if upstream is not None:
        raise InvalidRequest(
            f"this registry is a mirror of {upstream[0]}", "back that one up: an empty mirror fills itself"
        )
    if folder.exists():
        raise InvalidRequest(f"{folder} is there already", "name a folder that does not exist yet")
    unfinished = folder.with_name(f".{folder.name}.part")
    try:
        if unfinished.exists():  # of a backup that was killed
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=_PRIVATE_FOLDER)
        summary = _write_into(unfinished, index, blobs, keys)
        os.rename(unfinished, folder)
        sync_folder(folder.absolute().parent)
    except OSError as error:
        raise StorageFull(f"{folder}: cannot be written: {error.strerror or error}") from None
    return summary


def _write_into(folder: Path, index: Index, blobs: BlobStore, keys: Mapping[str, Path]) -> BackupSummary:
    counts: dict[str, int] = {}
    digests: dict[str, str] = {}
    sizes: dict[str, int] = {}
    (folder / "index").mkdir(mode=_PRIVATE_FOLDER)
    with snapshot(index) as view:
        schema, created = view.schema, int(time.time())
        for table in TABLES:
            name = f"index/{table}.jsonl"
            lines = (codec.canonical(row) + b"\n" for row in view.rows(table))
            digests[name], sizes[name], counts[table] = _write(folder / name, lines)
    size = packs = 0
    for key, digest, length in _packs(folder):
        _copy_out(blobs, key, digest, length, folder / key)
        packs, size = packs + 1, size + length
    for name, path in keys.items():
        (folder / "keys").mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
        file = f"keys/{name}.key"
        digests[file], sizes[file], _ = _write(folder / file, [path.read_bytes()])
    summary = BackupSummary(
        BACKUP_FORMAT, cachesvc.__version__, created, schema, counts, digests, sizes, packs, size, (*keys,)
    )
    for place in (folder / "index", *(one for one in folder.iterdir() if one.is_dir())):
        sync_folder(place)
    _write(folder / _SUMMARY, [codec.canonical(summary)])
    sync_folder(folder)
    return summary


def read_backup(
    folder: Path, knows_schema: Callable[[str], bool], digest: Digest | None = None
) -> BackupSummary:
    """Reads a backup and checks all of it: every file, every pack, and that each revision's envelope is
    signed for its pack.

    ``knows_schema``: whether this code knows a migration. ``digest``: which backup it must be; ``None`` for
    one that will not be restored. Raises ``NotFound``, ``Corrupt``,
    ``ProtocolMismatch`` for a backup of a newer release.
    """
    try:
        with _plain_file(folder / _SUMMARY) as file:
            data = file.read(_MAX_SUMMARY_BYTES + 1)
    except OSError as error:
        raise NotFound(
            f"{folder}: no whole backup is there: {_SUMMARY}: {error.strerror}", "name what backup wrote"
        ) from None
    if digest not in (None, Digest.of(data)):
        raise Corrupt(
            f"{folder}: not the backup of digest {digest}",
            "somebody changed it, or it is another one; each backup printed its digest",
        )
    try:
        value = codec.parse_json(data, limit=_MAX_SUMMARY_BYTES, what=_SUMMARY)
        if not isinstance(value, dict) or value.get("format") != BACKUP_FORMAT:
            raise ValueError(f"{_SUMMARY}: not of {BACKUP_FORMAT}")
        summary = codec.build(BackupSummary, value)
    except ValueError as error:
        raise Corrupt(f"{folder}: {error}") from None
    if not knows_schema(summary.schema):
        raise ProtocolMismatch(
            f"{folder}: its index has schema {summary.schema[:40]!r}, which this cachesvc does not know",
            f"restore it with cachesvc {summary.release[:40]} or newer",
        )
    expected = {f"index/{table}.jsonl" for table in summary.tables}
    if (
        summary.digest != Digest.of(data)
        or not set(summary.keys) <= set(KEYS)
        or not set(summary.tables) <= set(TABLES)
        or set(summary.digests) != expected | {f"keys/{name}.key" for name in summary.keys}
        or set(summary.sizes) != set(summary.digests)
    ):
        raise Corrupt(f"{folder}: {_SUMMARY} is not one that backup writes")
    for name in summary.digests:
        for _ in _checked(folder, name, summary):
            pass
    try:
        _check_packs(folder, summary)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{folder}: rows of the index that are none: {error!r:.200}") from None
    return summary


def _check_packs(folder: Path, summary: BackupSummary) -> None:
    of_key: dict[str, Digest] = {}
    for key, digest, size in _packs(folder):
        for _ in _same_bytes(folder / key, digest.hex, size):
            pass
        of_key[key] = digest
    for row in _rows(folder, "revisions"):
        envelope = base64.b64decode(row["envelope"])
        verified = verify_revision(Digest(row["revision"]), row["signer"], envelope)
        if verified.manifest.pack.digest != of_key.get(row["pack_key"]):
            raise Corrupt(f"{folder}: revision {row['revision']} is signed for another pack")
    if len(of_key) != summary.packs:
        raise Corrupt(f"{folder}: {len(of_key)} packs, {summary.packs} were written")


def check_store_empty(folder: Path, blobs: BlobStore) -> None:
    """Raises ``InvalidRequest`` if a store holds packs that are not of this backup. Those that are were put
    by a restore that was killed."""
    sizes = {key: size for key, _, size in _packs(folder)}
    for facts in blobs.list(PREFIX):
        if sizes.get(facts.key) != facts.size:
            raise InvalidRequest(
                f"the store is not empty: {facts.key} is not of this backup",
                "restore into an empty registry: another folder, bucket or prefix",
            )


def restore_backup(
    folder: Path,
    summary: BackupSummary,
    blobs: BlobStore,
    *,
    open_index: Callable[[], Index],
    key_path: Callable[[str], Path | None],
) -> tuple[str, ...]:
    """Restores a backup that `read_backup` has checked: first the packs, then the keys, and the index in one
    transaction. Returns the names of the keys that have no place here.

    ``key_path``: where a key goes. Run again after a kill, it goes on. Raises ``InvalidRequest`` if the
    registry is not empty, ``Corrupt``, ``StorageFull``, ``Unavailable``.
    """
    check_store_empty(folder, blobs)
    there = {facts.key for facts in blobs.list(PREFIX)}
    for key, digest, size in _packs(folder):
        if key in there:
            if Digest.of_chunks(blobs.open(key)) == digest:
                continue
            blobs.delete(key)
        blobs.put(key, _same_bytes(folder / key, digest.hex, size))
    left = tuple(name for name in summary.keys if not _restore_key(folder, name, key_path(name), summary))
    rows = {table: _rows(folder, table, summary) if table in summary.tables else () for table in TABLES}
    with filling(open_index(), rows) as unit:
        unit.audit.add(
            int(time.time()),
            CONSOLE,
            "registry.restore",
            ANY,
            str(folder),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(summary.created)),
            revisions=summary.tables.get("revisions", 0),
        )
    return left


def parts_of(summary: BackupSummary) -> list[BackupPart]:
    """Returns what a backup holds, part by part."""
    tables = [
        BackupPart(f"table {name}", count, summary.sizes[f"index/{name}.jsonl"])
        for name, count in summary.tables.items()
        if count
    ]
    keys = [BackupPart(f"private key {name}", 1, summary.sizes[f"keys/{name}.key"]) for name in summary.keys]
    return [*tables, BackupPart("packs", summary.packs, summary.bytes), *keys]


def _restore_key(folder: Path, name: str, path: Path | None, summary: BackupSummary) -> bool:
    if path is None:
        return False
    data = b"".join(_checked(folder, f"keys/{name}.key", summary))
    with replacing(path, _PRIVATE) as out:
        out.write(data)
    return True


def _packs(folder: Path) -> Iterator[tuple[str, Digest, int]]:
    """Yields key, digest and size of each pack that the index of a backup names."""
    for row in _rows(folder, "objects"):
        yield row["key"], Digest(row["digest"]), int(row["size"])


def _rows(folder: Path, table: str, summary: BackupSummary | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table. Raise ``Corrupt`` at the end if they are not those that ``summary`` names:
    nothing is committed then."""
    name = f"index/{table}.jsonl"
    if summary is None:
        with _plain_file(folder / name) as file:
            yield from map(json.loads, file)
        return
    left = b""
    for chunk in _checked(folder, name, summary):
        *lines, left = (left + chunk).split(b"\n")
        yield from map(json.loads, lines)


def _copy_out(blobs: BlobStore, key: str, digest: Digest, size: int, path: Path) -> None:
    try:
        chunks = blobs.open(key)
    except NotFound:
        raise NotFound(
            f"object {key}: its revision was deleted and the object collected while it was backed up",
            "back up again; if it stays, see: cachesvc admin fsck",
        ) from None
    path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    written, length, _ = _write(path, chunks)
    if (written, length) != (digest.hex, size):
        raise Corrupt(f"object {key}: not the bytes that the index names", "see: cachesvc admin fsck --deep")


def _checked(folder: Path, name: str, summary: BackupSummary) -> Iterator[bytes]:
    """Yield the bytes of a file that ``summary`` names. Raise ``Corrupt``."""
    return _same_bytes(folder / name, summary.digests[name], summary.sizes[name])


def _same_bytes(path: Path, digest: str, size: int) -> Iterator[bytes]:
    """Yield the bytes of a file of a backup. Raise ``Corrupt`` before the first one for another size, and at
    the end for other bytes: who keeps them then keeps nothing."""
    seen, left = hashlib.sha256(), size
    try:
        with _plain_file(path) as file:
            is_same = os.fstat(file.fileno()).st_size == size
            while is_same and (chunk := file.read(min(CHUNK_BYTES, left))):
                seen.update(chunk)
                left -= len(chunk)
                yield chunk
    except OSError as error:
        raise Corrupt(f"{path}: cannot be read: {error.strerror}", "take another backup") from None
    if not is_same or left or seen.hexdigest() != digest:
        raise Corrupt(f"{path}: not the bytes that were written", "take another backup")


def _plain_file(path: Path) -> BinaryIO:
    """Open a file of a backup: no link, and nothing that may never end. Raise ``OSError``."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def _write(path: Path, chunks: Iterable[bytes]) -> tuple[str, int, int]:
    """Write a file that is synced, and return its digest in hex, its size and the number of chunks."""
    digest, size, count = hashlib.sha256(), 0, 0
    with replacing(path, _PRIVATE) as out:
        for chunk in chunks:
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            count += 1
    return digest.hexdigest(), size, count
