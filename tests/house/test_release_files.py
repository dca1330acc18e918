"""Test what makes a release the same bytes each time, and the switch between the documents of versions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cachesvc.warm.checkout import Checkout, Tree
from cachesvc_client.wire.errors import Corrupt, InvalidRequest
from tools import release_files


def test_an_archive_depends_on_names_and_contents_alone(tmp_path: Path) -> None:
    made = []
    for number, names in enumerate((("a", "b"), ("b", "a"))):
        folder = tmp_path / str(number) / "tree"
        (folder / "inner").mkdir(parents=True, mode=(0o755, 0o700)[number])
        for name in names:
            (folder / "inner" / name).write_text(name)
            (folder / "inner" / name).chmod((0o644, 0o600)[number])
            os.utime(folder / "inner" / name, (number, number))
        target = tmp_path / f"{number}.tar.gz"
        release_files.archive(folder, target)
        made.append(target.read_bytes())
    assert made[0] == made[1]


def test_builds_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    for folder, text in (("first", "1"), ("second", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same").write_text("same")
        (tmp_path / folder / "other").write_text(text)
    (tmp_path / "second" / "more").touch()
    with pytest.raises(Corrupt, match=r"differ: more, other$"):
        release_files.demand_equal(tmp_path / "first", tmp_path / "second")


@pytest.mark.parametrize("tree", [Tree(1, ("Makefile",)), Tree(None)])
def test_a_release_is_made_of_a_commit(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_files, "find_checkout", lambda _: Checkout("c0de" * 10, "", Path("/"), ()))
    monkeypatch.setattr(release_files, "tree_of", lambda _: tree)
    with pytest.raises(InvalidRequest, match="not those of the commit"):
        release_files.origin()
    monkeypatch.setattr(release_files, "find_checkout", lambda _: None)
    with pytest.raises(InvalidRequest, match="no checkout"):
        release_files.origin()


def test_the_switch_names_every_version_and_leads_to_the_newest(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "0.1.0", "assets"):
        (tmp_path / name).mkdir()
    release_files.switch_versions(tmp_path)
    rows = json.loads((tmp_path / "versions.json").read_text())
    assert [row["version"] for row in rows] == ["0.10.0", "0.9.0", "0.1.0"]
    assert [row["aliases"] for row in rows] == [["latest"], [], []]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()
