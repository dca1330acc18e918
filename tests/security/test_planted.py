"""The node store is not trusted: files that are put into it between two starts, as by a cache that CI
restores, do not run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.registries import client, free_url, prepare, serve

from .attacker import Made, folders, hostile_library, hostile_pickle, runs, source, start
from .conftest import NAME

pytestmark = pytest.mark.compiles

Plant = Callable[[Path, Path], None]
"""Makes a file of a cache folder hostile; the second path is the marker."""


def pickles(path: Path, marker: Path) -> None:
    if {"fxgraph", "aotautograd"} & set(path.parts):
        path.write_bytes(hostile_pickle(marker))


def sources(path: Path, marker: Path) -> None:
    if path.suffix == ".py":
        path.write_text(source(marker))


def libraries(path: Path, marker: Path) -> None:
    if path.suffix == ".so":
        path.write_bytes(hostile_library(marker, marker.parent))


@dataclass
class Node:
    """A node on which a service has compiled, at the place where the next one looks, and a copy of it."""

    place: Path
    copy: Path
    variables: dict[str, str]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Nothing is signed by a trusted key, and the registry is down."""
    place = tmp_path_factory.mktemp("node")
    variables = {"CACHESVC_URL": free_url(), "CACHESVC_TRUSTED_KEYS": str(SigningKey.generate().public)}
    first = start("service.py", NAME, place=place, **variables)
    assert first["state"] == "miss" and first["compilations"] > 0, first
    copy = place.with_name("copy")
    shutil.copytree(place, copy, symlinks=True)
    return Node(place, copy, variables)


@pytest.mark.parametrize("plant", [pickles, sources, libraries])
def test_what_was_planted_in_cache_folders_is_gone_before_a_compiler_opens_it(
    marker: Path, compiled: Node, plant: Plant
) -> None:
    place = compiled.place
    shutil.rmtree(place)
    shutil.copytree(compiled.copy, place, symlinks=True)
    changed = 0
    for path in [path for folder in folders(place) for path in folder.rglob("*") if path.is_file()]:
        before = path.read_bytes()
        plant(path, marker)
        changed += path.read_bytes() != before
    assert changed, "there was something to replace"
    again = start("service.py", NAME, place=place, **compiled.variables)
    assert runs(marker) == 0 and again["difference"] < 1e-5, again


def test_a_pack_that_was_swapped_in_the_node_store_is_refused(
    honest: Made, marker: Path, tmp_path: Path
) -> None:
    """And so is what lies where the registry's revision was installed before."""
    place = tmp_path / "node"
    place.mkdir()
    prepare(tmp_path, honest.key.text)
    hostile = honest.signed(NAME, tmp_path / "hostile.cachesvc", SigningKey.generate(), marker)
    with serve(tmp_path) as served:
        assert client("push", str(honest.bundle), **served.publisher).returncode == 0
        assert start("service.py", NAME, place=place, **served.variables)["state"] == "hit"
        [pack] = (place / "home/.cache/cachesvc/v1/packs").iterdir()
        size = hostile.manifest.pack.size
        pack.write_bytes(hostile.bundle.read_bytes()[-size:])
        for path in [path for folder in folders(place) for path in folder.rglob("*") if path.is_file()]:
            pickles(path, marker)
        again = start("service.py", NAME, place=place, **served.variables)
    assert runs(marker) == 0 and (again["state"], again["compilations"]) == ("hit", 0), again
