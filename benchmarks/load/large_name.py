"""Fill a name with entries of other graphs, in the likeness of one real entry."""

from __future__ import annotations

import dataclasses
import io
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.pack import PackReader, SourceFile, write_pack
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.build_bundle import next_sequence
from cachesvc_client.publication.publish_bundle import delivery
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Target

_KEY = re.compile(r"[a-z0-9]{40,81}")
"""Matches the parts of a path that a compiler made of a digest."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_DIGITS = "0123456789abcdef"
_THREADS = 4


def fill(url: str, token: str, key: SigningKey, bundle: Path, first: int, last: int) -> None:
    """Publish one entry for each number from ``first`` to ``last - 1`` beside that of ``bundle``.

    Each has the bundle's environment, files of the same number and size, and keys and a model of its own."""
    envelope, offset = open_bundle(bundle)
    manifest = check_envelope(envelope, trusted=[key.public], expected=None, now=0).manifest
    with PackReader(bundle, manifest, offset) as reader:
        files = [(record.kind, record.path, reader.read(record)) for record in manifest.files]

    def publish(numbers: list[int]) -> None:
        with Remote(url, token) as remote:
            for number in numbers:
                _publish(remote, key, manifest, files, number)

    batches = [list(range(first + part, last, _THREADS)) for part in range(_THREADS)]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(publish, batches))


def _publish(
    remote: Remote, key: SigningKey, manifest: Manifest, files: list[tuple[str, str, bytes]], number: int
) -> None:
    chance, out = random.Random(number), io.BytesIO()
    names: dict[str, str] = {}

    def other(part: re.Match[str]) -> str:
        letters = _DIGITS if set(part[0]) <= set(_DIGITS) else _LETTERS
        return names.setdefault(part[0], part[0][0] + "".join(chance.choices(letters, k=len(part[0]) - 1)))

    sources = (
        SourceFile(kind, _KEY.sub(other, path), chance.randbytes(64) + content[64:])
        for kind, path, content in files
    )
    contents = write_pack(sorted(sources, key=lambda source: (source.kind, source.path)), out)
    made = dataclasses.replace(
        manifest,
        statement=dataclasses.replace(
            manifest.statement, target=Target(f"other-{number}/float32/default"), sequence=next_sequence(0)
        ),
        pack=contents.pack,
        frames=contents.frames,
        files=contents.files,
        workload=dataclasses.replace(manifest.workload, script=Digest.of(f"other {number}".encode())),
        key_facts=None,
    )
    with delivery(remote, made, io.BytesIO(out.getvalue()), 0) as commit:
        commit(key.sign(made), None)
