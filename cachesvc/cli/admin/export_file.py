"""The file of an export: a tar of bundles.

Its first member says what the file is, and its last one that the file is whole.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from cachesvc_client.bundle.check import check_pack
from cachesvc_client.bundle.file import open_bundle, read_head
from cachesvc_client.trust.accept import Acceptance, Accepted
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, NotFound, StorageFull
from cachesvc_client.wire.names import Namespace

from .downloads import writable_file

EXPORT_FORMAT = "cachesvc.export/1"
_FIRST, _LAST = "cachesvc-export.json", "end.json"
_BUNDLE_NAME = re.compile(r"\d{6}-[0-9a-f]{12}\.cachesvc")
_MAX_JSON_BYTES = 64 << 20
"""Bytes of the first and of the last member, at most."""


class ExportWriter:
    """Adds bundles to the file of an export; `write_export` opens and ends it."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self.revisions: list[Digest] = []

    def add(self, bundle: Path, revision: Digest) -> None:
        """Adds the bundle of ``revision``."""
        name = f"{len(self.revisions) + 1:06d}-{revision.hex[:12]}.cachesvc"
        self._archive.add(bundle, name, recursive=False, filter=_without_owner)
        self.revisions.append(revision)


@contextmanager
def write_export(path: Path, namespace: Namespace) -> Iterator[ExportWriter]:
    """Writes the file of an export, which appears at ``path`` when the block ends without an error.

    Raises ``StorageFull`` if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        with (
            writable_file(temporary) as out,
            tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            first = {"format": EXPORT_FORMAT, "namespace": namespace, "made": int(time.time())}
            _add_json(archive, _FIRST, first)
            writer = ExportWriter(archive)
            yield writer
            _add_json(archive, _LAST, {"revisions": writer.revisions})
        temporary.replace(path)
    except OSError as error:
        raise StorageFull(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read_export(file: Path, acceptance: Acceptance) -> Iterator[tuple[Path, Accepted]]:
    """Yields each bundle of an export as a temporary file, after the checks of signature, statement and pack.

    A bundle is written to the disk after its signature was checked, and only as many bytes as were signed.

    Raises ``Untrusted``, ``Corrupt`` (also for a file that ends early), ``NotFound``.
    """
    revisions: list[str] = []
    whole = False
    with _open_archive(file) as archive, tempfile.TemporaryDirectory(prefix="cachesvc-admin-") as folder:
        first = _read_json(archive, archive.next(), _FIRST, file)
        if first.get("format") != EXPORT_FORMAT:
            raise Corrupt(f"{file}: format {str(first.get('format'))[:40]!r}", f"{EXPORT_FORMAT} is read")
        for member in iter(archive.next, None):
            if member.name == _LAST:
                whole = _read_json(archive, member, _LAST, file).get("revisions") == revisions
                break
            if not (_is_plain(member) and _BUNDLE_NAME.fullmatch(member.name)):
                raise Corrupt(f"{file}: {member.name[:80]!r} is no member of an export")
            verified = _check_head(archive, member, acceptance, first.get("namespace"), file)
            path = Path(folder, "bundle")
            with writable_file(path) as out:
                _copy_member(archive, member, out)
            check_pack(path, verified.manifest, open_bundle(path)[1])
            revisions.append(verified.revision)
            yield path, verified
    if not whole:
        raise Corrupt(f"{file}: it is not whole", "export it again")


def _check_head(
    archive: tarfile.TarFile, member: tarfile.TarInfo, acceptance: Acceptance, namespace: object, file: Path
) -> Accepted:
    """Checks a bundle's envelope in the archive, and that the member is as large as the signed manifest says:
    nothing is written for what nobody trusted has signed."""
    what = f"{file}: {member.name}"
    with _member_bytes(archive, member) as source:
        envelope, offset = read_head(source, what)
    verified = acceptance.accept_signed(envelope, None)
    if verified.manifest.statement.namespace != namespace:
        raise Corrupt(f"{verified.manifest.statement.full_name} in an export of {str(namespace)[:80]!r}")
    signed = offset + verified.manifest.pack.size
    if member.size != signed:
        raise Corrupt(f"{what}: {member.size} bytes, the manifest says {signed}")
    return verified


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Returns whether a member is a regular file whose bytes all stand in the archive: a sparse one makes
    gigabytes of nothing."""
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()


def _member_bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    source = archive.extractfile(member)
    assert source is not None  # a regular member
    return source


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Removes what is of this machine, so that equal revisions make equal members."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def _add_json(archive: tarfile.TarFile, name: str, value: object) -> None:
    data = codec.canonical(value)
    member = _without_owner(tarfile.TarInfo(name))
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


@contextmanager
def _open_archive(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(file, "r:") as archive:
            yield archive
    except tarfile.TarError as error:
        raise Corrupt(f"{file}: no export: {str(error)[:100]}") from None
    except OSError as error:
        raise NotFound(f"{file}: {error.strerror or error}") from None


def _copy_member(archive: tarfile.TarFile, member: tarfile.TarInfo, out: IO[bytes]) -> None:
    with _member_bytes(archive, member) as source:
        while chunk := source.read(1 << 20):
            out.write(chunk)


def _read_json(
    archive: tarfile.TarFile, member: tarfile.TarInfo | None, name: str, file: Path
) -> dict[str, Any]:
    if member is None or member.name != name or not _is_plain(member) or member.size > _MAX_JSON_BYTES:
        raise Corrupt(f"{file}: no export", f"{name} is expected")
    try:
        with _member_bytes(archive, member) as source:
            value = json.loads(source.read())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Corrupt(f"{file}: {name} cannot be read")
    return value
