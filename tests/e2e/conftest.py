"""What the end-to-end tests share: bundles, built once in a run."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.manifest.records import Manifest

from .harness import SCALAR, run
from .registries import Served, client, prepare, serve

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


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A model, compiled as by a service that sets nothing."""
    return built_once(folder_of_the_run(request, tmp_path_factory), "model")


@pytest.fixture(scope="session")
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A function, compiled with ``SCALAR``, for what is neither about models nor about the compile."""
    return built_once(folder_of_the_run(request, tmp_path_factory), "function", "small", **SCALAR)


@pytest.fixture(scope="session")
def vector(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The function of ``small`` with the instructions of this CPU, for what is about those."""
    return built_once(folder_of_the_run(request, tmp_path_factory), "vector", "small", **QUICK)


def folder_of_the_run(request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all of xdist's workers have in common, if there are any."""
    own = factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


def built_once(root: Path, folder: str, *arguments: str, name: str = NAME, **variables: str) -> Built:
    """Build in ``folder``, unless another worker has; one that comes meanwhile waits."""
    place = root / folder
    bundle, key_file = place / "small.cachesvc", place / "signing.key"
    with open(root / f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not bundle.exists():
            place.mkdir(exist_ok=True)
            SigningKey.generate().save(key_file)
            done = run("build.py", str(bundle), str(key_file), name, *arguments, place=place, **variables)
            assert done.code == 0, done.err[-4000:]
    return Built(bundle, bundle.with_suffix(".pt"), SigningKey.load(key_file), key_file)


@pytest.fixture(scope="module")
def registry(small: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serves one compiled function of 4 rows as ``NAME``."""
    folder = tmp_path_factory.mktemp("registry")
    prepare(folder, small.key.text)
    with serve(folder) as served:
        pushed = client("push", str(small.bundle), **served.publisher)
        assert pushed.returncode == 0, pushed.stderr
        yield served
