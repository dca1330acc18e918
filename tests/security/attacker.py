"""What an attacker makes: real bundles whose pickles, sources and libraries write a line into a file when
they run, and services that would run them."""

from __future__ import annotations

import json
import pickle
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.pack import PackReader, SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Lane, Name
from tests.e2e.harness import SCALAR, environment
from tests.prepared import COMPILES, prepared_python

PROGRAMS = Path(__file__).parent / "programs"


def source(marker: Path) -> str:
    """Python that leaves a trace, and then fails as if it were damaged."""
    return f"open({str(marker)!r}, 'a').write('it ran\\n'); raise ValueError('hostile')"


class _Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (source(self.marker),)


def hostile_pickle(marker: Path) -> bytes:
    """Bytes that run code when a compiler unpickles them."""
    return pickle.dumps(_Payload(marker))


def hostile_library(marker: Path, folder: Path) -> bytes:
    """A shared object that runs code when it is loaded."""
    text = (
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void) {"
        f'FILE *f = fopen("{marker}", "a"); fputs("it ran\\n", f); fclose(f); }}\n'
    )
    (folder / "hostile.c").write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "hostile.so", "hostile.c"], cwd=folder, check=True)
    return (folder / "hostile.so").read_bytes()


@dataclass
class Made:
    """A bundle with the key that signed it."""

    bundle: Path
    key: SigningKey

    @property
    def trusted(self) -> str:
        return str(self.key.public)

    @property
    def manifest(self) -> Manifest:
        envelope, _ = open_bundle(self.bundle)
        return check_envelope(envelope, trusted=[self.key.public], expected=None, now=0.0).manifest

    def files(self) -> list[SourceFile]:
        manifest, offset = self.manifest, open_bundle(self.bundle)[1]
        with PackReader(self.bundle, manifest, offset) as reader:
            return [
                SourceFile(one.kind, one.path, bytes(reader.read(one)), one.mode) for one in manifest.files
            ]

    def signed(
        self, name: str, path: Path, key: SigningKey, marker: Path | None = None, lane: str | None = None
    ) -> Made:
        """The same under another name and key; with a ``marker`` all that a compiler unpickles is hostile."""
        manifest, files = self.manifest, self.files()
        if marker is not None:
            files = [
                replace(file, data=hostile_pickle(marker))
                if file.path.startswith(("fxgraph/", "aotautograd/"))
                else file
                for file in files
            ]
        draft = Draft(
            name=Name.parse(name),
            target=manifest.statement.target,
            fingerprint=manifest.fingerprint,
            workload=manifest.workload,
            scopes=manifest.scopes,
            lane=Lane(lane) if lane else None,
        )
        build_bundle(files, draft, key, path)
        return Made(path, key)


@dataclass
class Started:
    """A process that has said what came of its start, and lives."""

    process: subprocess.Popen[str]
    answer: dict[str, Any]


@contextmanager
def running_python(program: str, *arguments: str, place: Path, **variables: str) -> Iterator[Started]:
    """Starts a program of `programs` on the node ``place``; it ends with the block. torch is imported
    already."""
    environ = {**environment(place), **SCALAR, "CACHESVC_REPORT": "0", **variables}
    process = subprocess.Popen(
        [*prepared_python(COMPILES, environ), str(PROGRAMS / program), *arguments],
        cwd=place,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(place / "log").open("w"),
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line, (place / "log").read_text()[-4000:]
        yield Started(process, json.loads(line))
    finally:
        process.communicate("", timeout=60)


def start(program: str, *arguments: str, place: Path, **variables: str) -> dict[str, Any]:
    """Starts a program and lets it end; answers what it said."""
    with running_python(program, *arguments, place=place, **variables) as process:
        return process.answer


def folders(place: Path) -> list[Path]:
    """The private cache folders on a node."""
    return sorted((place / "home/.cache/cachesvc/v1/folders").iterdir())


def runs(marker: Path) -> int:
    """How often hostile code ran."""
    return len(marker.read_text().splitlines()) if marker.exists() else 0
