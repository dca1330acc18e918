"""Run one process of a node, for tests that need several: it fetches a pack and installs it."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

from packing import RULES

from cachesvc_client.bundle.pack import PackReader
from cachesvc_client.node.install import install
from cachesvc_client.node.store import NodeStore
from cachesvc_client.wire import codec
from cachesvc_client.wire.manifest.records import Manifest


def main(work: Path, start: float) -> None:
    manifest = codec.build(Manifest, json.loads((work / "manifest").read_bytes()))
    data = (work / "made.pack").read_bytes()

    def download(offset):
        for begin in range(offset, len(data), 100_000):
            time.sleep(0.001)
            yield data[begin : begin + 100_000]

    time.sleep(max(0.0, start - time.time()))
    path, downloaded_bytes = NodeStore(work / "store").fetch(
        manifest.pack.digest, manifest.pack.size, download
    )
    with PackReader(path, manifest) as reader:
        result = install(reader, RULES, {kind: work / "caches" / kind for kind in RULES}, threads=2)
    print(
        json.dumps(
            {
                "moved": downloaded_bytes,
                "written": result.written,
                "kept": result.kept,
                "merged": result.merged,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
