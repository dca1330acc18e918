"""Make bundles with files as Triton leaves them, and configurations that trust their signer."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cachesvc_client.bundle.check import Verified, check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey, TrustedKey
from cachesvc_client.config.settings import Config
from cachesvc_client.publication.build_bundle import Build, Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.provenance import Provenance
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Lane, Name, Target

KERNEL = "A" * 52
"""Triton's key of a kernel."""
FACTS = {"torch": "2.11.0", "triton": "3.6.0", "gpu": "NVIDIA H200", "compute_capability": "9.0"}
NOW = 2_000_000_000.0
"""Seconds of UTC, long after every bundle of the tests was signed."""


def metadata(arch: int = 90, **more: object) -> bytes:
    """Return what Triton writes beside a kernel."""
    target = {"backend": "cuda", "arch": arch, "warp_size": 32}
    return json.dumps({"hash": "ab" * 32, "target": target, "num_warps": 4, **more}).encode()


def triton_files(size: int = 3000) -> list[SourceFile]:
    """Return the files of one kernel, with a placeholder in the group file."""
    group = {"child_paths": {"add.json": f"{{cachesvc:triton}}/{KERNEL}/add.json"}}
    return [
        SourceFile("triton", f"{KERNEL}/add.json", metadata()),
        SourceFile("triton", f"{KERNEL}/add.cubin", os.urandom(size)),
        SourceFile("triton", f"{KERNEL}/__grp__add.json", json.dumps(group).encode()),
    ]


def make_bundle(
    folder: Path,
    key: SigningKey,
    name: str = "team/bert:v1",
    target: str = "bert/default",
    *,
    files: Sequence[SourceFile] = (),
    lane: str | None = None,
    provenance: Provenance | None = None,
    quick: bool = False,
) -> Path:
    """Build a signed bundle file."""
    path = folder / f"{target.replace('/', '-')}-{os.urandom(4).hex()}.cachesvc"
    draft = Draft(
        Name.parse(name),
        Target(target),
        dict(FACTS),
        Workload(script=Digest.of(target.encode())),
        ("gpu",),
        lane=Lane(lane) if lane else None,
        build=Build(attest=(lambda pack: provenance.statement(name, pack.digest)) if provenance else None),
    )
    build_bundle(files or triton_files(), draft, key, path, quick=quick)
    return path


def verified(path: Path, key: SigningKey) -> tuple[Verified, int]:
    """Return the checked manifest of a bundle, and where its pack begins."""
    envelope, offset = open_bundle(path)
    return check_envelope(envelope, trusted=[key.public], expected=None, now=NOW), offset


def config(folder: Path, key: SigningKey, **more: Any) -> Config:
    """Return the configuration of a user who trusts a key in the namespace ``team``."""
    return Config(trusted_keys=(TrustedKey(f"team={key.public}"),), store=folder / "store", **more)
