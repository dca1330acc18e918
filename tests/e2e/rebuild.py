"""Build a bundle again with other files, for tests of what a wrong but trusted builder publishes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.pack import PackReader, SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Name


def read_bundle(bundle: Path, key: SigningKey) -> tuple[Manifest, list[SourceFile]]:
    """Return the manifest and the files of a bundle that ``key`` signed."""
    envelope, offset = open_bundle(bundle)
    manifest = check_envelope(envelope, trusted=[key.public], expected=None, now=time.time()).manifest
    with PackReader(bundle, manifest, offset) as reader:
        files = [SourceFile(one.kind, one.path, bytes(reader.read(one)), one.mode) for one in manifest.files]
    return manifest, files


def rebuild(
    bundle: Path,
    key: SigningKey,
    out: Path,
    change: Callable[[SourceFile], SourceFile],
    name: Name | None = None,
) -> None:
    """Build a bundle with each file changed and all else as it is, but for another ``name`` if one is given,
    signed by the same key."""
    manifest, files = read_bundle(bundle, key)
    draft = Draft(
        name=name or manifest.statement.full_name,
        target=manifest.statement.target,
        fingerprint=manifest.fingerprint,
        workload=manifest.workload,
        scopes=manifest.scopes,
    )
    build_bundle([change(file) for file in files], draft, key, out)
