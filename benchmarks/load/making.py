"""Make real, signed packs to publish."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass

from cachesvc_client.bundle.pack import PackContents, SourceFile, write_pack
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.build_bundle import next_sequence
from cachesvc_client.publication.publish_bundle import delivery
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Manifest, Statement, Workload
from cachesvc_client.wire.names import Namespace, ShortName, Target

from .filling import FINGERPRINT, SCOPES


@dataclass(frozen=True)
class Packed:
    """Holds a pack and what a manifest says of it."""

    contents: PackContents
    data: bytes


def pack(size: int, seed: int) -> Packed:
    """Make a pack with one file of ``size`` bytes that do not compress."""
    out = io.BytesIO()
    contents = write_pack(
        [SourceFile("triton", "0/a/kernel.cubin", random.Random(seed).randbytes(size))], out
    )
    return Packed(contents, out.getvalue())


def manifest(packed: Packed, name: str, target: str, head_sequence: int = 0) -> Manifest:
    """Make a successor of the head that has ``head_sequence``."""
    statement = Statement(Namespace("bench"), ShortName(name), Target(target), next_sequence(head_sequence))
    contents, workload = packed.contents, Workload(model=Digest.of(name.encode()))
    return Manifest(statement, contents.pack, contents.frames, contents.files, FINGERPRINT, workload, SCOPES)


def publish(
    remote: Remote, key: SigningKey, packed: Packed, new_manifest: Manifest, head: Digest | None
) -> Digest:
    """Publish by the client's own calls, one after the other. Return the revision, once it is
    acknowledged."""
    with delivery(remote, new_manifest, io.BytesIO(packed.data), 0) as commit:
        return commit(key.sign(new_manifest), head).revision
