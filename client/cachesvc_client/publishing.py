"""Publish: pack, manifest, seal, one upload, commit. A straight line, without threads."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .wire.digest import Digest
from .wire.errors import Corrupt, HeadConflict, NotFound, NotWarm
from .wire.factors import Fingerprint
from .wire.names import Lane, Name, Target
from .wire.protocol import CommitAnswer, CommitRequest, EntrySummary, UploadRequest
from .wire.records import Manifest, Statement, Workload

if TYPE_CHECKING:
    from .bundle.pack import SourceFile
    from .bundle.seal import SigningKey
    from .remote import Remote


@dataclass(frozen=True, slots=True)
class Draft:
    """What a manifest says beside the files; everything but pack, frames and sequence."""

    name: Name
    target: Target
    fingerprint: Fingerprint
    workload: Workload
    scopes: tuple[str, ...]
    lane: Lane | None = None
    expires: int | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)


def next_sequence(head: int = 0) -> int:
    """Milliseconds of UTC, and more than the head's: a registry that was made anew does not look
    rolled back."""
    return max(int(time.time() * 1000), head + 1)


def build_bundle(files: Sequence[SourceFile], draft: Draft, key: SigningKey, path: Path) -> Manifest:
    """Packs and seals ``files`` into the bundle file ``path``, whole or not at all.

    Raises ``NotWarm`` if there is nothing to pack, ``StorageFull`` if there is no room.
    """
    from .bundle.file import write_bundle
    from .bundle.pack import write_pack

    if not files:
        raise NotWarm(f"{draft.target}: nothing was compiled, so there is nothing to publish")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".cachesvc-") as folder:
        pack = Path(folder) / "pack"
        with open(pack, "wb") as out:
            contents = write_pack(files, out)
        manifest = Manifest(
            statement=Statement(
                namespace=draft.name.namespace,
                name=draft.name.name,
                target=draft.target,
                sequence=next_sequence(),
                tag=draft.name.tag,
                lane=draft.lane,
                expires=draft.expires,
            ),
            pack=contents.pack,
            frames=contents.frames,
            files=contents.files,
            fingerprint=dict(draft.fingerprint),
            workload=draft.workload,
            scopes=draft.scopes,
            measured=dict(draft.measured),
            provenance=dict(draft.provenance),
        )
        write_bundle(path, key.sign(manifest), pack)
    return manifest


def publish_bundle(remote: Remote, path: Path, key: SigningKey, attempts: int = 3) -> CommitAnswer:
    """Publishes a bundle that ``key`` signs, as the successor of the entry's present head.

    The same manifest is a success and moves no byte. If another publisher was faster, it is signed
    again over the new head, ``attempts`` times; then ``HeadConflict``. Raises what ``Remote`` raises.
    """
    from .bundle.check import check_envelope
    from .bundle.file import open_bundle

    envelope, offset = open_bundle(path)
    manifest = check_envelope(envelope, trusted=[key.public], wanted=None, now=time.time()).manifest
    with path.open("rb") as pack:
        upload = None
        for attempt in range(attempts):
            head = _head(remote, manifest.entry)
            if head is not None and head.revision == Digest.of(manifest.encode()):
                return CommitAnswer(manifest.entry, head.revision, created=False)
            if head is not None and head.sequence >= manifest.statement.sequence:
                statement = replace(manifest.statement, sequence=next_sequence(head.sequence))
                manifest = replace(manifest, statement=statement)
            if upload is None:
                upload = _upload(remote, manifest, pack, offset)
            try:
                request = CommitRequest(key.sign(manifest).decode(), head.revision if head else None)
                return remote.commit(upload, request)
            except HeadConflict:
                if attempt == attempts - 1:
                    raise
    raise AssertionError("unreachable")


def _head(remote: Remote, entry: Digest) -> EntrySummary | None:
    try:
        return remote.entry(entry)
    except NotFound:
        return None


def _upload(remote: Remote, manifest: Manifest, pack: BinaryIO, offset: int) -> str:
    statement = manifest.statement
    upload = remote.begin_upload(
        UploadRequest(statement.namespace, statement.name, manifest.pack.size, statement.lane)
    )
    pack.seek(offset)
    stored = remote.put_pack(upload, pack, manifest.pack.size)
    if stored.pack != manifest.pack.digest:
        remote.abort(upload.upload)
        raise Corrupt(f"upload: {stored.pack} arrived, {manifest.pack.digest} was sent", "try again")
    return upload.upload
