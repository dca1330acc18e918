"""Says what images of MCV, the Model Cache Vault, hold: labels, paths, and what a kernel's metadata say.

An image has one gzip layer with the files of one compiler cache and a list of its entries, and labels that
say how many there are and for which GPU. Source: ``mcv/docs/spec-compat.md`` of
https://github.com/redhat-et/GKM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import Corrupt, InvalidRequest

OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
LAYERS = (OCI_LAYER, DOCKER_LAYER)
"""Media types of the layer."""
CONFIG = "application/vnd.oci.image.config.v1+json"
"""Media type of the configuration that has the labels."""
KSERVE = "io.kserve.km"
"""Prefix of the labels that KServe's Kernel Manager reads."""
MAX_METADATA_BYTES = 1 << 20
"""Largest number of bytes of a file that is parsed."""
_MAX_LABEL = 4096
"""Largest number of characters of a label."""

Record = dict[str, Any]
"""What the list of entries says of one kernel."""
Metadata = Iterable[tuple[str, bytes]]
"""Path and content of the files that may describe kernels."""


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """Describes the images of one compiler cache. Another cache is another row of `FORMATS`.

    ``kind``: name of the kind whose files the image holds. ``metadata``: matches the paths of the files that
    describe kernels. ``record``: returns what such a file says; ``None`` for a file that describes none.
    ``variable``, ``folder``: where the compiler looks for its files. ``cache_type``: KServe's name.
    """

    name: str
    kind: str
    metadata: re.Pattern[str]
    record: Callable[[bytes, str], Record | None]
    variable: str
    folder: str
    cache_type: str

    @property
    def files(self) -> str:
        """Returns the beginning of the paths of the cache's files in the layer."""
        return f"io.{self.name}.cache/"

    @property
    def list_path(self) -> str:
        """Returns the path of the list of entries in the layer."""
        return f"io.{self.name}.manifest/manifest.json"

    def label(self, name: str) -> str:
        """Returns the whole name of a label."""
        return f"cache.{self.name}.image/{name}"

    def records(self, metadata: Metadata) -> list[Record]:
        """Returns what is said of the kernels, in the order of the paths. Raises ``Corrupt``."""
        records = (
            self.record(data, path) for path, data in sorted(metadata) if self.metadata.fullmatch(path)
        )
        return [record for record in records if record is not None]

    def labels(self, records: list[Record], size: int) -> dict[str, str]:
        """Returns the labels that describe the image. ``size``: bytes of the cache's files."""
        return {
            self.label("entry-count"): str(len(records)),
            self.label("summary"): codec.canonical({"targets": targets(records)}).decode(),
            self.label("cache-size-bytes"): str(size),
        }

    def kserve_labels(self, records: list[Record], folder: str) -> dict[str, str]:
        """Returns the labels with which KServe mounts the files. ``folder``: where they are mounted."""
        hashes = ",".join(dict.fromkeys(record["hash"] for record in records))
        labels = {
            f"{KSERVE}/framework": self.name,
            f"{KSERVE}/cache-type": self.cache_type,
            f"{KSERVE}/cache-hash": hashes,
            f"{KSERVE}/cache-mount-subpath": ".",
            f"{KSERVE}/cache-root-env": f"{self.variable}={folder}",
        }
        return {name: text for name, text in labels.items() if len(text) <= _MAX_LABEL}


def _triton_record(data: bytes, path: str) -> Record | None:
    """Returns what Triton's metadata of a kernel say: ``<KEY>/<kernel>.json``."""
    try:
        value = codec.parse_json(data, limit=MAX_METADATA_BYTES, what=path)
    except ValueError as error:
        raise Corrupt(str(error)) from None
    target = value.get("target") if isinstance(value, dict) else None
    if not isinstance(target, dict) or not isinstance(value.get("hash"), str):
        return None
    backend, arch, warp = (target.get(name) for name in ("backend", "arch", "warp_size"))
    if not isinstance(backend, str) or not isinstance(arch, (str, int)) or not isinstance(warp, int):
        raise Corrupt(f"{path}: a target without backend, arch and warp_size")
    record: Record = {"hash": value["hash"], "backend": backend, "arch": str(arch), "warp_size": warp}
    for name in ("ptx_version", "num_stages", "num_warps"):
        if isinstance(value.get(name), int) and not isinstance(value[name], bool) and value[name]:
            record[name] = value[name]
    return record


TRITON = CacheFormat(
    "triton",
    "triton",
    re.compile(r"[^/]+/(?!__grp__)[^/]+(?<!\.autotune)\.json"),
    _triton_record,
    "TRITON_CACHE_DIR",
    "/root/.triton/cache",
    "triton",
)
FORMATS = (TRITON,)
"""The images that are read and written. vLLM's have no row: no kind holds vLLM's files yet."""


def targets(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns each target once, sorted, as the summary has them."""
    rows = {(row["backend"], str(row["arch"]), row["warp_size"]) for row in records}
    return [
        {"backend": backend, "arch": arch, "warp_size": warp}
        for backend, arch, warp in sorted(rows, key=lambda row: tuple(map(str, row)))
    ]


def format_of(labels: Mapping[str, str], what: str) -> CacheFormat:
    """Returns the format that an image's labels name. Raises ``InvalidRequest``."""
    for one in FORMATS:
        if one.label("summary") in labels or one.label("cache-size-bytes") in labels:
            return one
    named = sorted({match[1] for name in labels if (match := re.match(r"cache\.(\w+)\.image/", name))})
    if named:
        raise InvalidRequest(f"{what}: a cache of {', '.join(named)[:80]}", "Triton's are read")
    raise InvalidRequest(f"{what}: no image of MCV: no label names a cache", "is the reference right?")
