"""Measure packs down and up, against the plainest way of moving the same bytes between the same two places.

Production: boto3 on the same S3. Embedded, which has no such thing: FastAPI alone, that sends a file, and
writes one. ``WORKERS`` threads move packs at once; what is received is counted, and not kept.
"""

from __future__ import annotations

import http.client
import io
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.hosts import Failed, Registry
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Namespace, ShortName
from cachesvc_client.wire.requests.protocol import ResolveRequest

from .columns import Bare, Embedded, Production
from .filling import FINGERPRINT
from .making import Packed, manifest, pack, publish

WORKERS = 4


def measure(
    where: Embedded | Production, server: Registry, bare: Bare, megabytes: float, count: int, rounds: int
) -> dict[str, Any]:
    """Move ``count`` packs of so many MiB each way, ``rounds`` times. Return MiB a second, medians, and
    ratios."""
    size = int(megabytes * (1 << 20))
    packed = pack(size, size)
    plain = _Boto(where, packed) if isinstance(where, Production) else _Files(bare, packed)
    ways: dict[str, Callable[[int], int]] = {
        "plain download": plain.download,
        "download": (ours := _Ours(server, packed, f"pack-{megabytes}")).download,
        "plain publish": plain.publish,
        "publish": ours.publish,
    }
    results: dict[str, list[float]] = {way: [] for way in ways}
    for move in ways.values():
        _timed(move, WORKERS, len(packed.data))
    for _ in range(rounds):
        for way, move in ways.items():
            results[way].append(round(_timed(move, count, len(packed.data)), 1))
    return {
        "MiB": megabytes,
        "count": count,
        **{way: statistics.median(rates) for way, rates in results.items()},
        **{f"{way}_ratio": _ratio(results[way], results[f"plain {way}"]) for way in ("download", "publish")},
        "rounds": results,
    }


def _ratio(ours: list[float], plain: list[float]) -> float:
    return round(statistics.median(one / other for one, other in zip(ours, plain, strict=True)), 3)


def _timed(move: Callable[[int], int], count: int, size: int) -> float:
    """Return the MiB a second of ``count`` moves."""
    began = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        total = sum(pool.map(move, range(count)))
    seconds = time.perf_counter() - began
    if total != count * size:
        raise Failed(f"{total} bytes were moved, {count * size} expected")
    return total / seconds / (1 << 20)


class _Ours:
    """Moves packs with the client's :class:`Remote`. Every publication is a new revision of its worker's
    entry."""

    def __init__(self, server: Registry, packed: Packed, name: str) -> None:
        self._remote, self._packed, self._name = Remote(server.url, server.token, timeout=60), packed, name
        self._key = SigningKey.load(Path(server.signing_key))
        self._heads: dict[int, tuple[Digest, int]] = {}
        self.publish(0)
        request = ResolveRequest(Namespace("bench"), ShortName(name), FINGERPRINT)
        [self._found] = self._remote.resolve(request).revisions

    def download(self, _number: int) -> int:
        return sum(map(len, self._remote.downloads.fetch(self._found, self._packed.contents.pack)))

    def publish(self, number: int) -> int:
        head, sequence = self._heads.pop(number, (None, 0))
        new_manifest = manifest(self._packed, self._name, f"target-{number}", sequence)
        revision = publish(self._remote, self._key, self._packed, new_manifest, head)
        self._heads[number] = (revision, new_manifest.statement.sequence)
        return len(self._packed.data)


class _Boto:
    """Moves packs with plain boto3: a streamed GET; ``upload_fileobj``, which sends large objects in parts
    and threads."""

    def __init__(self, where: Production, packed: Packed) -> None:
        self._s3, self._data = where.s3(), packed.data
        self._s3.create_bucket(Bucket="plain")
        self._s3.upload_fileobj(io.BytesIO(self._data), "plain", "source")

    def download(self, _number: int) -> int:
        body = self._s3.get_object(Bucket="plain", Key="source")["Body"]
        return sum(map(len, body.iter_chunks(1 << 20)))

    def publish(self, number: int) -> int:
        self._s3.upload_fileobj(io.BytesIO(self._data), "plain", f"copy-{number}")
        return len(self._data)


class _Files:
    """Moves packs to and from ``bare.py``, with the standard library's client."""

    def __init__(self, bare: Bare, packed: Packed) -> None:
        self._host, self._data = urlsplit(bare.url).netloc, packed.data
        (bare.folder / "source").write_bytes(packed.data)

    def download(self, _number: int) -> int:
        connection = http.client.HTTPConnection(self._host)
        connection.request("GET", "/files/source")
        answer, received = connection.getresponse(), 0
        while chunk := answer.read(1 << 20):
            received += len(chunk)
        connection.close()
        return received

    def publish(self, number: int) -> int:
        connection = http.client.HTTPConnection(self._host)
        connection.request("PUT", f"/files/copy-{number}", self._data)
        if connection.getresponse().status != 200:
            raise Failed("the bare server did not take a file")
        connection.close()
        return len(self._data)
