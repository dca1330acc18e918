"""A bundle is used only for the name that it is signed for, in the lane that was asked for, and never after a
newer one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.seal import SigningKey

from .attacker import Made, start
from .conftest import NAME

pytestmark = pytest.mark.compiles


def attach(
    place: Path, trusted: str, environ: dict[str, str] | None = None, **arguments: str
) -> dict[str, Any]:
    place.mkdir(exist_ok=True)
    return start(
        "attached.py", json.dumps(arguments), place=place, CACHESVC_TRUSTED_KEYS=trusted, **(environ or {})
    )


@pytest.fixture
def other(honest: Made, tmp_path: Path) -> Made:
    """A bundle of another namespace, signed by a key that is trusted, too."""
    return honest.signed("team-a/model", tmp_path / "other.cachesvc", SigningKey.generate())


def test_a_bundle_of_another_name_is_refused(honest: Made, other: Made, tmp_path: Path) -> None:
    trusted = f"{honest.trusted},{other.trusted}"
    refused = attach(tmp_path / "node", trusted, name=NAME, bundle=str(other.bundle))
    assert refused["installed"] == [], refused
    told = " ".join(refused["problems"])
    assert "signed for team-a/model:latest, wanted: team-b/model:latest" in told
    accepted = attach(tmp_path / "node", trusted, name=NAME, bundle=str(honest.bundle))
    assert len(accepted["installed"]) == 1 and accepted["problems"] == [""], accepted


@pytest.mark.parametrize(
    ("name", "variables", "installed"),
    [
        ("team-b/model:other", {}, 0),
        ("team-b/model:other", {"CACHESVC_TAG_FALLBACK": "latest"}, 1),
        (None, {"CACHESVC_NAME": "team-a/model"}, 0),
        (None, {"CACHESVC_NAME": "team-a/model,team-b/model"}, 1),
        (None, {}, 1),
    ],
)
def test_the_name_counts_wherever_it_comes_from_with_its_tags(
    honest: Made, tmp_path: Path, name: str | None, variables: dict[str, str], installed: int
) -> None:
    named = {"name": name} if name else {}
    everywhere = f"*={honest.trusted}"  # names of two namespaces want to know for which a key counts
    seen = attach(tmp_path / "node", everywhere, variables, bundle=str(honest.bundle), **named)
    assert len(seen["installed"]) == installed, seen


def test_of_a_folder_of_bundles_those_of_the_name_are_used(honest: Made, other: Made, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.mkdir()
    for bundle in (honest.bundle, other.bundle):
        shutil.copy(bundle, image)
    trusted = f"{honest.trusted},{other.trusted}"
    seen = attach(tmp_path / "node", trusted, name=NAME, bundle=str(image))
    assert len(seen["installed"]) == 1 and "other.cachesvc" in " ".join(seen["problems"]), seen


@pytest.mark.parametrize("named", [True, False])
def test_a_bundle_of_a_lane_is_refused_unless_the_lane_is_asked_for(
    honest: Made, tmp_path: Path, named: bool
) -> None:
    lane = honest.signed(NAME, tmp_path / "lane.cachesvc", honest.key, lane="pr-7")
    arguments = {"bundle": str(lane.bundle), **({"name": NAME} if named else {})}
    refused = attach(tmp_path / "node", lane.trusted, **arguments)
    assert refused["installed"] == [] and "lane pr-7" in " ".join(refused["problems"]), refused
    wrong = attach(tmp_path / "node", lane.trusted, {"CACHESVC_LANE": "pr-8"}, **arguments)
    assert wrong["installed"] == [], wrong
    asked = attach(tmp_path / "node", lane.trusted, {"CACHESVC_LANE": "pr-7"}, **arguments)
    assert len(asked["installed"]) == 1, asked


@pytest.mark.parametrize("together", [False, True])
def test_an_older_bundle_after_a_newer_one_is_refused(honest: Made, tmp_path: Path, together: bool) -> None:
    image = tmp_path / "image"
    image.mkdir()
    newer = honest.signed(NAME, image / "a.cachesvc", honest.key)
    if together:
        shutil.copy(honest.bundle, image / "b.cachesvc")
    first = attach(tmp_path / "node", honest.trusted, name=NAME, bundle=str(image))
    assert len(first["installed"]) == 1, first
    shutil.copy(honest.bundle, image / "a.cachesvc")
    second = attach(tmp_path / "node", honest.trusted, name=NAME, bundle=str(newer.bundle))
    assert second["installed"] == [] and "is older than" in " ".join(second["problems"]), second
