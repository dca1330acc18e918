"""What a node compiled itself serves its next start, and nobody else can put anything there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.registries import free_url

from .attacker import Made, runs, start
from .conftest import NAME

pytestmark = pytest.mark.compiles


def _own(place: Path) -> list[Path]:
    return sorted((place / "home/.cache/cachesvc/v1/own").iterdir())


def test_a_service_with_nothing_to_restore_compiles_once_on_its_node(marker: Path, tmp_path: Path) -> None:
    place = tmp_path / "node"
    place.mkdir()
    trusted = str(SigningKey.generate().public)
    variables = {"CACHESVC_URL": free_url(), "CACHESVC_TRUSTED_KEYS": trusted}
    first = start("service.py", NAME, place=place, **variables)
    assert first["state"] == "miss" and first["compilations"] > 0, first
    second = start("service.py", NAME, place=place, **variables)
    assert (second["state"], second["compilations"]) == ("unused", 0), second
    assert second["revisions"] == [] and second["difference"] < 1e-5
    assert any("earlier start of this node" in reason for reason in second["reasons"]), second
    other = start("service.py", "team-b/other", place=place, **variables)
    assert other["state"] == "miss", "another name has other results"
    off = start("service.py", NAME, place=place, CACHESVC_KEEP_OWN="0", **variables)
    assert off["state"] == "miss", off

    key = place / "home/.config/cachesvc/node.key"
    assert key.stat().st_mode & 0o077 == 0
    mine, theirs = _own(place)
    planted = Made(mine, SigningKey.load(key)).signed(
        "own/results", tmp_path / "planted", SigningKey.generate(), marker
    )
    for path in (mine, theirs):
        shutil.copy(planted.bundle, path)
    again = start("service.py", NAME, place=place, **variables)
    assert runs(marker) == 0 and again["state"] == "miss" and again["difference"] < 1e-5, again


def test_results_of_another_folder_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "node"
    place.mkdir()
    variables = {"CACHESVC_URL": free_url(), "CACHESVC_TRUSTED_KEYS": str(SigningKey.generate().public)}
    start("service.py", NAME, place=place, **variables)
    start("service.py", "team-b/other", place=place, CACHESVC_TAG_FALLBACK="x", **variables)
    one, other = _own(place)
    shutil.copy(one, tmp_path / "kept")
    shutil.copy(other, one)
    shutil.copy(tmp_path / "kept", other)
    swapped = start("service.py", NAME, place=place, **variables)
    assert swapped["state"] == "miss", swapped
