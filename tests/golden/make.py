"""Make the golden files of a new format. Existing files are never overwritten: old formats stay readable."""

import sys
from dataclasses import replace
from pathlib import Path

import zstandard

from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.ancestors import Ancestor
from cachesvc_client.wire.manifest.proof import Proof
from cachesvc_client.wire.names import Namespace

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "bundle"))


def main() -> None:
    from packing import KEY, make_pack

    target = HERE / "pack-1.bin"
    if target.exists():
        raise SystemExit(f"{target} exists: golden files are append-only")
    path, manifest = make_pack(HERE, expires=4_000_000_000)
    path.rename(target)
    (HERE / "manifest-1.json").write_bytes(manifest.encode())
    proof = Proof(
        "2.16.0.dev20261101+cpu", ("torch._inductor.compile_fx.compile_fx", "torch.library.Library.impl")
    )
    (HERE / "manifest-proof-1.json").write_bytes(replace(manifest, proof=proof).encode())
    ancestor = Ancestor(Digest.of(b"ancestor"), Namespace("team"), KEY.public)
    (HERE / "manifest-ancestors-1.json").write_bytes(replace(manifest, ancestors=(ancestor,)).encode())
    (HERE / "envelope-1.json").write_bytes(KEY.sign(manifest))
    write_bundle(HERE / "bundle-1.cachesvc", KEY.sign(manifest), target)
    (HERE / "pack-1.libzstd").write_text(".".join(map(str, zstandard.ZSTD_VERSION)))


if __name__ == "__main__":
    main()
