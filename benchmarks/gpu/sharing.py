"""Measure how much packs of one model's variants share, and what storing the shared parts once would save.

    python benchmarks/gpu/sharing.py BUNDLE... --trust KEY [--json FILE]

Reads bundles that ``cachesvc warm --out`` wrote (``sharing.toml`` beside this makes such a family). In the
order given, as they would arrive in a namespace: bytes of *frames* that an earlier pack has (what a frame
store would save), bytes saved if a pack left out the *files* that an earlier one has (it is packed again
without them, so this is exact), and what a store of *single files*, each compressed by itself, would take.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

TREE = Path(__file__).resolve().parent.parent.parent
sys.path[0:0] = [str(TREE), str(TREE / "client")]

import zstandard  # noqa: E402

from cachesvc_client.bundle.check import check_envelope  # noqa: E402
from cachesvc_client.bundle.file import open_bundle  # noqa: E402
from cachesvc_client.bundle.pack import PackReader, SourceFile, write_pack  # noqa: E402
from cachesvc_client.bundle.seal import PublicKey  # noqa: E402
from cachesvc_client.wire.digest import Digest  # noqa: E402
from cachesvc_client.wire.manifest.records import Manifest  # noqa: E402

LEVEL = 19
"""The level at which packs of these sizes are compressed (`bundle.pack`)."""


@dataclass(frozen=True)
class Bundle:
    """Holds a verified bundle with its files' contents."""

    label: str
    manifest: Manifest
    files: list[tuple[SourceFile, Digest]]


def read(path: Path, trust: str) -> Bundle:
    """Read and verify a bundle. Raise what `check_envelope` and `PackReader` raise."""
    envelope, offset = open_bundle(path)
    verified = check_envelope(envelope, trusted=[PublicKey(trust)], expected=None, now=time.time())
    manifest = verified.manifest
    with PackReader(path, manifest, offset) as pack:
        files = [
            (SourceFile(record.kind, record.path, pack.read(record), record.mode), record.digest)
            for record in manifest.files
        ]
    return Bundle(str(manifest.statement.target), manifest, files)


def shared(bundles: Sequence[Bundle]) -> dict[str, Any]:
    """Return the bytes of a family, and the savings of each way of sharing, with a row for each pack."""
    frames: set[Digest] = set()
    known: set[Digest] = set()
    alone: dict[Digest, int] = {}
    rows: list[dict[str, Any]] = []
    kinds = Counter[str]()
    for bundle in bundles:
        new = [(file, digest) for file, digest in bundle.files if digest not in known]
        repacked = write_pack([file for file, _ in new], io.BytesIO()).pack.size if new else 0
        for file, digest in bundle.files:
            if digest in known:
                kinds[f"{file.kind}/*{PurePosixPath(file.path).suffix}"] += len(_content(file))
            if digest not in alone:
                alone[digest] = len(zstandard.ZstdCompressor(level=LEVEL).compress(_content(file)))
        rows.append(
            {
                "pack": bundle.label,
                "bytes": bundle.manifest.pack.size,
                "files": len(bundle.files),
                "raw": sum(file.size for file in bundle.manifest.files),
                "files known": len(bundle.files) - len(new),
                "bytes without known files": repacked,
                "bytes of known frames": sum(
                    frame.size for frame in bundle.manifest.frames if frame.digest in frames
                ),
            }
        )
        known |= {digest for _, digest in bundle.files}
        frames |= {frame.digest for frame in bundle.manifest.frames}
    total = sum(row["bytes"] for row in rows)
    return {
        "bytes": total,
        "saved by frames": share(sum(row["bytes of known frames"] for row in rows), total),
        "saved by leaving out known files": share(
            total - sum(row["bytes without known files"] for row in rows), total
        ),
        "saved by single files": share(total - sum(alone.values()), total),
        "raw bytes known, by kind": dict(kinds.most_common()),
        "packs": rows,
    }


def _content(file: SourceFile) -> bytes:
    assert isinstance(file.data, bytes)
    return file.data


def share(part: int, total: int) -> float:
    """Return the saved share of the compressed bytes; below 0 if the way takes more."""
    return round(part / total, 4) if total else 0.0


def pairs(bundles: Sequence[Bundle]) -> dict[str, Any]:
    """Compare each pack with the first: return the saving if the first is there already."""
    first = bundles[0]
    return {
        other.label: shared([first, other])["packs"][1]["bytes without known files"]
        / max(1, other.manifest.pack.size)
        for other in bundles[1:]
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--trust", required=True, help="the public key that signed them")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bundles = [read(path, options.trust) for path in sorted(options.bundles)]
    report = {
        "family": shared(bundles),
        "bytes with the first one there, of bytes alone": pairs(bundles),
    }
    text = json.dumps(report, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    family = report["family"]
    names = ("pack", "bytes", "files", "files known", "bytes without known files", "bytes of known frames")
    print("| " + " | ".join(names) + " |\n|---|" + "---:|" * (len(names) - 1))
    for row in family["packs"]:
        print("| " + " | ".join(str(row[name]) for name in names) + " |")
    print(json.dumps({name: value for name, value in family.items() if name.startswith("saved")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
