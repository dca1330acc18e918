"""Test that the files of changes/ are fragments of which the next version's section is made."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.markdown import ROOT, anchors

CHANGES = ROOT / "changes"
FRAGMENTS = sorted(file for file in CHANGES.iterdir() if file.name != "README.md")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Return what the builder says of the fragments below a folder."""
    command = [
        sys.executable,
        "-m",
        "towncrier",
        "build",
        "--draft",
        "--version",
        "9.9",
        "--dir",
        str(folder),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_fragment_is_in_the_next_section() -> None:
    done = build(ROOT)
    assert done.returncode == 0, done.stderr + done.stdout
    for file in FRAGMENTS:
        assert file.read_text().split("\n")[0] in done.stdout, file.name


@pytest.mark.parametrize("name", ["+attach.md", "43.bugfix.md", "notes.txt", "43"])
def test_a_name_that_is_not_well_formed_is_refused(name: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(CHANGES, tmp_path / "changes")
    assert build(tmp_path).returncode == 0
    (tmp_path / "changes" / name).write_text("A change.\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert name in done.stdout + done.stderr


@pytest.mark.parametrize("file", FRAGMENTS, ids=lambda file: file.name)
def test_a_fragment_is_short_and_its_links_lead_somewhere(file: Path) -> None:
    text = file.read_text()
    assert len(text) <= 400
    assert [line for line in text.splitlines() if len(line) > 125] == []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        assert (ROOT / target).exists(), link
        assert not anchor or anchor in anchors((ROOT / target).read_text()), link
