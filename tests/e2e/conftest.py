"""What the end-to-end tests share: one signing key and one bundle, built once per session."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.records import Manifest

from .harness import run

NAME = "team/small"


@dataclass
class Built:
    """A bundle with the builder's compiled output and the key that signed it."""

    bundle: Path
    expect: Path
    key: SigningKey
    key_file: Path

    @property
    def trusted(self) -> str:
        return str(self.key.public)

    @property
    def folder(self) -> Path:
        """Inductor's folder, as the builder left it."""
        [folder] = (self.bundle.parent / "home").glob(".cache/cachesvc/v1/folders/*/inductor")
        return folder

    def manifest(self, bundle: Path) -> Manifest:
        """Of a bundle of this key."""
        envelope, _ = open_bundle(bundle)
        return check_envelope(envelope, trusted=[self.key.public], expected=None, now=time.time()).manifest

    def files(self, bundle: Path) -> set[str]:
        """What a bundle of this key holds: ``kind/path``."""
        return {f"{record.kind}/{record.path}" for record in self.manifest(bundle).files}

    @property
    def headers(self) -> str:
        """A TMPDIR that holds PyTorch's precompiled headers: making them takes longer than most tests."""
        return str(self.bundle.parent / "tmp")


@pytest.fixture(scope="session")
def small(built: Built) -> Built:
    """A function instead of a model: what compiles in a second, for what is not about models."""
    bundle = built.bundle.parent / "function.cachesvc"
    done = run(
        "build.py",
        str(bundle),
        str(built.key_file),
        NAME,
        "small",
        place=built.bundle.parent / "function",
        TMPDIR=built.headers,
    )
    assert done.code == 0, done.err[-4000:]
    return Built(bundle, bundle.with_suffix(".pt"), built.key, built.key_file)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("builder")
    key = SigningKey.generate()
    key.save(place / "signing.key")
    bundle = place / "small.cachesvc"
    done = run("build.py", str(bundle), str(place / "signing.key"), NAME, place=place)
    assert done.code == 0, done.err[-4000:]
    return Built(bundle, bundle.with_suffix(".pt"), key, place / "signing.key")
