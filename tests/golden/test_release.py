"""Test that this version reads what each published one wrote, and has every name that it had.

`tests.golden.release` wrote it; docs/reference/releases.md says what stays for how long."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.config.login import Login
from tests.e2e.registries import Served, serve
from tests.golden.release import HERE, NAME, cachesvc, names
from tools.release_files import VERSION

VERSIONS = sorted(
    path.name.removeprefix("release-").removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz")
)


@pytest.fixture(scope="module", params=VERSIONS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folders that a version left, as their user has them."""
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(HERE / f"release-{request.param}.tar.xz") as packed:
        packed.extractall(folder, filter="tar")
    place = folder / request.param
    for path in (place, *place.rglob("*")):
        os.chown(path, os.geteuid(), os.getegid())
    return place


@pytest.fixture(scope="module")
def registry(place: Path) -> Iterator[Served]:
    """Serve the data folder that the version left."""
    with serve(place, prepared=False) as served:
        served.token = (place / "data/admin.token").read_text().strip()
        yield served


def test_the_registry_answers_as_before(place: Path, registry: Served) -> None:
    for words, before in json.loads((place / "answers.json").read_text()).items():
        assert lost(before, json.loads(cachesvc(place, registry, *words.split(), "--json"))) == [], words


def lost(before: Any, now: Any, where: str = "") -> list[str]:
    """Return each value of an answer that another answer has not; it may have more fields."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [one for key in before for one in lost(before[key], now.get(key, "absent"), f"{where}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [one for at, row in enumerate(before) for one in lost(row, now[at], f"{where}[{at}]")]
    return (
        [] if before == now or where.rpartition(".")[2] in CHANGING else [f"{where}: {before!r}, now {now!r}"]
    )


CHANGING = {"used", "last_used"}
"""Fields of an answer that a later question changes."""


def test_every_pack_is_whole_and_is_handed_out(place: Path, registry: Served, tmp_path: Path) -> None:
    assert json.loads(cachesvc(place, registry, "admin", "fsck", "--deep", "--json"))["rows"] == []
    cachesvc(place, registry, "pull", NAME, "--all", "--into", tmp_path)
    assert contents(tmp_path) == contents(place / "pulled") != {}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tokens_and_the_login_still_count(place: Path, registry: Served) -> None:
    token = (place / "report.token").read_text()
    for secret, role in ((registry.token, "admin"), (token, "report")):
        registry_of = Served(registry.url, registry.trust, "", registry.process, secret)
        assert json.loads(cachesvc(place, registry_of, "whoami", "--json"))["role"] == role
    login = Login.read({"HOME": str(place / "home")})
    assert login.default


def test_bundles_are_trusted(place: Path, registry: Served) -> None:
    for path in sorted((place / "bundles").iterdir()):
        assert open_bundle(path)
        assert ": trusted" in cachesvc(place, registry, "verify", path)


def test_the_packs_of_a_node_s_store_are_not_downloaded_again(place: Path, registry: Served) -> None:
    packs = contents(place / "store/v1/packs")
    inodes = {path: path.stat().st_ino for path in (place / "store/v1/packs").iterdir()}
    cachesvc(place, registry, "node", "team/*", "--once", "--store", place / "store")
    assert contents(place / "store/v1/packs") == packs != {}
    assert {path: path.stat().st_ino for path in inodes} == inodes


@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_of_a_version_is_still_there(version: str) -> None:
    """A name goes only as docs/reference/releases.md says; then this file loses it in the same change."""
    before, now = json.loads((HERE / f"names-{version}.json").read_text()), names()
    for what in ("variables", "settings", "routes"):
        assert set(before[what]) <= set(now[what]), what
    for what in ("python", "commands"):
        assert before[what].keys() <= now[what].keys(), what
        for name, parts in before[what].items():
            assert set(parts) <= set(now[what][name]), name


def test_this_version_s_own_files_are_there_before_it_is_published() -> None:
    assert VERSION in VERSIONS, "run python -m tests.golden.release"
