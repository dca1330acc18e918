"""What a node compiled itself serves its next start, and nobody else can put anything there."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.publication.build_bundle import Build, Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.ancestors import Ancestor
from tests.e2e.harness import SCALAR
from tests.e2e.registries import free_url

from .attacker import Made, runs, start
from .conftest import NAME

pytestmark = pytest.mark.compiles


@dataclass
class Node:
    """A node on which two services without an entry have started, each under a name of its own.

    ``first`` and ``other``: what their starts said. ``results``: the own results that they left."""

    place: Path
    variables: dict[str, str]
    first: dict[str, Any]
    other: dict[str, Any]
    results: list[Path]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Start both services once for all tests."""
    place = tmp_path_factory.mktemp("own") / "node"
    place.mkdir()
    variables = {
        "CACHESVC_URL": free_url(),
        "CACHESVC_TRUSTED_KEYS": str(SigningKey.generate().public),
        **SCALAR,
    }
    first = start("service.py", NAME, place=place, **variables)
    other = start("service.py", "team-b/other", place=place, CACHESVC_TAG_FALLBACK="x", **variables)
    shutil.copytree(_own(place), place / "kept")
    return Node(place, variables, first, other, sorted(_own(place).iterdir()))


@pytest.fixture
def node(started: Node) -> Node:
    """Return the node as both starts left it."""
    for path in started.results:
        shutil.copy(started.place / "kept" / path.name, path)
    return started


def _own(place: Path) -> Path:
    return place / "home/.cache/cachesvc/v1/own"


def test_a_service_with_nothing_to_restore_compiles_once_on_its_node(
    node: Node, marker: Path, tmp_path: Path
) -> None:
    place, variables = node.place, node.variables
    assert node.first["state"] == "miss" and node.first["compilations"] > 0, node.first
    assert node.other["state"] == "miss", "another name has other results"
    second = start("service.py", NAME, place=place, **variables)
    assert (second["state"], second["compilations"]) == ("miss", 0), second
    assert second["revisions"] == [] and second["difference"] < 1e-5
    assert any("earlier start of this node" in reason for reason in second["reasons"]), second
    off = start("service.py", NAME, place=place, CACHESVC_KEEP_OWN="0", **variables)
    assert off["state"] == "miss", off

    key = place / "home/.config/cachesvc/node.key"
    assert key.stat().st_mode & 0o077 == 0
    mine, theirs = node.results
    planted = Made(mine, SigningKey.load(key)).signed(
        "own/results", tmp_path / "planted", SigningKey.generate(), marker
    )
    for path in (mine, theirs):
        shutil.copy(planted.bundle, path)
    again = start("service.py", NAME, place=place, **variables)
    assert runs(marker) == 0 and again["state"] == "miss" and again["difference"] < 1e-5, again


def test_results_of_another_folder_are_refused(node: Node) -> None:
    one, other = node.results
    kept = node.place / "kept"
    shutil.copy(kept / other.name, one)
    shutil.copy(kept / one.name, other)
    swapped = start("service.py", NAME, place=node.place, **node.variables)
    assert swapped["state"] == "miss", swapped


def test_results_that_were_made_beside_a_revision_are_refused_without_it(node: Node) -> None:
    """They are of this node and this folder; the revision whose graphs they may call is not accepted."""
    key = SigningKey.load(node.place / "home/.config/cachesvc/node.key")
    for named in (False, True):
        for path in node.results:
            made = Made(node.place / "kept" / path.name, key)
            manifest = made.manifest
            gone = Ancestor(Digest.of(b"gone"), manifest.statement.namespace, str(key.public))
            draft = Draft(
                name=manifest.statement.full_name,
                target=manifest.statement.target,
                fingerprint=manifest.fingerprint,
                workload=manifest.workload,
                scopes=manifest.scopes,
                build=Build(ancestors=(gone,) if named else ()),
            )
            build_bundle(made.files(), draft, key, path)
        started = start("service.py", NAME, place=node.place, **node.variables)
        assert (started["compilations"] > 0) == named, started
