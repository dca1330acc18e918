"""What the end-to-end tests share: one signing key and one bundle, built once per session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey

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


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("builder")
    key = SigningKey.generate()
    key.save(place / "signing.key")
    bundle = place / "small.cachesvc"
    done = run("build.py", str(bundle), str(place / "signing.key"), NAME, place=place)
    assert done.code == 0, done.err[-4000:]
    return Built(bundle, bundle.with_suffix(".pt"), key, place / "signing.key")
