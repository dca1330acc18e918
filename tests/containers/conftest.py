"""Build the images of the Dockerfile once, over a stand-in for their base."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.deploy.charts import ROOT

from . import package_index
from .engine import BASE, Engine, check_machine, memory_folder, unavailable

FOLDER = ROOT / ".torch" / "containers"
"""What `make test-containers` made before: Debian with its own Python, as a tar file."""

_LIKE_THE_BASE = "ln -s python3 /usr/bin/python && rm /usr/lib/python3*/EXTERNALLY-MANAGED"


@dataclass(frozen=True)
class Image:
    """Is an image that was built. ``lent``: places at which only the build had a file of this machine."""

    engine: Engine
    tag: str
    lent: frozenset[str]


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Make an empty storage that has the stand-in for the base image.

    The real base, python:3.12-slim-bookworm, comes from a registry of images, which the tests do not ask. The
    stand-in is the same release of Debian with Debian's own Python, 3.11, from Debian's packages."""
    check_machine()
    if not (FOLDER / "base.tar").exists():
        unavailable(f"no {FOLDER / 'base.tar'}: make test-containers makes it")
    with memory_folder() as place:
        engine = Engine(place)
        base = engine.buildah("from", "scratch").strip()
        engine.buildah("add", "-q", base, FOLDER / "base.tar", "/")
        # The real base has a Python of this name, into which its pip installs.
        engine.buildah("run", "--isolation", "chroot", base, "--", "sh", "-c", _LIKE_THE_BASE)
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        engine.buildah("config", "--env", path, "--cmd", "python3", base)
        engine.buildah("commit", "-q", "--rm", base, BASE)
        engine.check(BASE)
        yield engine
        engine.podman("rm", "-f", "-a", "-t", "2")
        engine.podman("image", "unmount", "-a", "-f")


def _built(engine: Engine, target: str, tag: str) -> Image:
    options = package_index.build_options(engine.place)
    # Both targets share stages; with layers they are built once.
    engine.build(ROOT, "--layers", "--from", BASE, *options, "--target", target, tag=tag)
    return Image(engine, tag, frozenset(package_index.mounted(options)))


@pytest.fixture(scope="session")
def client_image(engine: Engine) -> Image:
    """Build the thin client of the Dockerfile as it is."""
    return _built(engine, "client", "localhost/cachesvc-client:0.1.0")


@pytest.fixture(scope="session")
def server_image(engine: Engine, client_image: Image) -> Image:
    """Build the registry of the Dockerfile as it is. The client comes first: it is a stage of both."""
    del client_image
    return _built(engine, "server", "localhost/cachesvc:0.1.0")
