"""Run publishers and readers at once, with collection beside them; then look for everything that was
acknowledged. The readers are processes of this program: ``python -m benchmarks.load.storm URL TOKEN COUNT
SECONDS``."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hosts import ROOT, Failed, Registry, clean_environment, running_process
from cachesvc.registry.upkeep.gc import Collected
from cachesvc.schema.upkeep import Finding, FsckPage
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.http.uploads import Uploads
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, NotFound
from cachesvc_client.wire.manifest.records import PackRecord
from cachesvc_client.wire.names import Namespace, ShortName
from cachesvc_client.wire.requests.protocol import ResolveRequest, UploadRequest, pack_path

from .filling import FINGERPRINT
from .making import manifest, pack, publish

KEPT = 3
"""The number of an entry's revisions that outlive a collection."""
SETTINGS: dict[str, str | int] = {
    "keep_revisions": KEPT,
    "keep_days": 0,
    "gc_seconds": 10,
    "lease_seconds": 60,
}
NAMES = 4
ABANDONED = 0.1
"""The share of uploads that are abandoned."""
_READER_PROCESSES = 2


@dataclass
class _Publisher:
    """Publishes successors of one entry until ``end``, and remembers the acknowledged revisions, oldest
    first."""

    remote: Remote
    key: SigningKey
    number: int
    acknowledged: list[tuple[Digest, PackRecord]] = field(default_factory=list)
    abandoned: int = 0

    def run(self, end: float) -> None:
        chance, head, sequence = random.Random(self.number), None, 0
        while time.monotonic() < end:
            packed = pack(chance.randrange(4096, 65536), chance.getrandbits(60))
            publication = manifest(packed, f"storm-{self.number % NAMES}", f"target-{self.number}", sequence)
            if chance.random() < ABANDONED:
                request = UploadRequest(
                    publication.statement.namespace, publication.statement.name, len(packed.data)
                )
                uploads = Uploads(self.remote)
                upload = uploads.begin(request)
                uploads.put_pack(upload, io.BytesIO(packed.data), len(packed.data))
                uploads.abort(upload.upload)
                self.abandoned += 1
                continue
            head = publish(self.remote, self.key, packed, publication, head)
            sequence = publication.statement.sequence
            self.acknowledged.append((head, packed.contents.pack))


def measure(server: Registry, publishers: int, readers: int, seconds: float) -> dict[str, Any]:
    """Return the counts. ``lost`` and ``dangling`` must be empty; any other failure raises."""
    remote = Remote(server.url, server.token, timeout=60)
    key = SigningKey.load(Path(server.signing_key))
    ours = [_Publisher(Remote(server.url, server.token, timeout=60), key, n) for n in range(publishers)]
    collected: Counter[str] = Counter()
    over = threading.Event()
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(publishers + 1) as pool, _reading(server, readers, seconds) as reading:
        collecting = pool.submit(_collect, remote, collected, over)
        for task in [pool.submit(one.run, end) for one in ours]:
            task.result()
        over.set()
        collecting.result()
        read = sum((Counter(_counts(process)) for process in reading), Counter())
    _collect_once(remote, collected)
    lost = [problem for one in ours for problem in _lost(remote, one)]
    return {
        "publishers": publishers,
        "readers": readers,
        "seconds": seconds,
        "published": sum(len(one.acknowledged) for one in ours),
        "abandoned": sum(one.abandoned for one in ours),
        "read": dict(read),
        "collected": dict(collected),
        "lost": lost,
        "dangling": [f"{finding.problem}: {finding.said}" for finding in _fsck(remote)],
    }


def _collect(remote: Remote, collected: Counter[str], over: threading.Event) -> None:
    while not over.wait(0.5):
        _collect_once(remote, collected)


def _collect_once(remote: Remote, collected: Counter[str]) -> None:
    collected.update(asdict(remote.call("POST", "/v1/gc", None, Collected)), runs=1)


def _lost(remote: Remote, one: _Publisher) -> Iterator[str]:
    """Return what is missing: the last acknowledged revision must be the head, and what retention keeps must
    be there to the byte."""
    request = ResolveRequest(Namespace("bench"), ShortName(f"storm-{one.number % NAMES}"), FINGERPRINT)
    heads = {row.revision for row in remote.resolve(request).revisions}
    if one.acknowledged and one.acknowledged[-1][0] not in heads:
        yield f"publisher {one.number}: its last revision is no head"
    for revision, record in one.acknowledged[-KEPT:]:
        try:
            chunks = remote.downloads.download(pack_path(revision), 0, record.size, pack=record.digest)
            if Digest.of_chunks(chunks) != record.digest:
                yield f"publisher {one.number}: {revision} has other bytes"
        except CacheSvcError as error:
            yield f"publisher {one.number}: {revision}: {error}"


def _fsck(remote: Remote) -> Iterator[Finding]:
    cursor: str | None = ""
    while cursor is not None:
        page = remote.call("POST", f"/v1/fsck?deep=true{cursor and f'&cursor={cursor}'}", None, FsckPage)
        yield from page.findings
        cursor = page.next


@contextmanager
def _reading(server: Registry, readers: int, seconds: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Run the readers in processes of their own: they need as much of an interpreter as the server does."""
    each = str(readers // _READER_PROCESSES)
    command = [sys.executable, "-m", "benchmarks.load.storm", server.url, server.token, each, str(seconds)]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running_process(command, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, text=True)
            )
            for _ in range(_READER_PROCESSES)
        ]


def _counts(process: subprocess.Popen[str]) -> dict[str, int]:
    out, _ = process.communicate()
    if process.returncode:
        raise Failed("a reader failed, see above")
    counts: dict[str, int] = json.loads(out)
    return counts


def _read(url: str, token: str, number: int, end: float) -> Counter[str]:
    """Resolve and download as a service does at its start: a pack that is gone is resolved once more."""
    remote, chance, counts = Remote(url, token, timeout=60), random.Random(number), Counter[str]()
    while time.monotonic() < end:
        name = ShortName(f"storm-{chance.randrange(NAMES)}")
        try:
            answer = remote.resolve(ResolveRequest(Namespace("bench"), name, FINGERPRINT))
        except NotFound:
            counts["not published yet"] += 1
            time.sleep(0.05)
            continue
        counts["resolves"] += 1
        revision = chance.choice(answer.revisions)
        try:
            chunks = remote.downloads.fetch(revision, PackRecord(revision.pack, revision.pack_size))
            counts["packs" if Digest.of_chunks(chunks) == revision.pack else "wrong packs"] += 1
        except NotFound:
            counts["gone, and resolved once more"] += 1
    return counts


def _readers(url: str, token: str, count: int, seconds: float) -> Counter[str]:
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(lambda number: _read(url, token, number, end), range(count)), Counter[str]())


if __name__ == "__main__":
    print(json.dumps(_readers(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
