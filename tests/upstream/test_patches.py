"""Test that the patches of docs/upstream apply to this torch, and do what the client's hooks do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.hosts import ROOT

PATCHES = sorted((ROOT / "docs" / "upstream").glob("*.patch"))
PACKAGES = Path(torch.__file__).parents[1]
HOOKED = (
    "tests/graphs/test_keys.py::test_a_backward_of_another_model_overwrites_no_output",
    "tests/e2e/test_many_entries.py::test_a_fresh_host_moves_the_one_pack_that_it_needs",
    "tests/e2e/test_by_name.py::test_publish_from_a_service_is_restored_by_the_next",
)
"""Tests of the hooks that the patches replace: of keys, look-ups and records."""

pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the patches are for torch 2.13"
)


def patch(*words: str, path: Path) -> None:
    command = ["patch", "-p1", "--batch", *words, "-i", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_a_patch_applies_to_the_released_sources(path: Path) -> None:
    patch("--dry-run", "--directory", str(PACKAGES), path=path)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a torch of links to the one that is here, with the patched files as its own."""
    folder = tmp_path_factory.mktemp("patched")
    subprocess.run(["cp", "-rs", str(PACKAGES / "torch"), str(folder)], check=True)
    for path in PATCHES:
        lines = path.read_text().splitlines()
        for name in (line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")):
            if (folder / name).is_symlink():
                (folder / name).unlink()
                shutil.copyfile(PACKAGES / name, folder / name)
        patch("--directory", str(folder), path=path)
    return folder


def outcomes(patched: Path, *tests: str, folder: Path) -> dict[str, str]:
    """Run tests on the patched torch, whose client asks the new points unless ``folder`` forbids it."""
    paths = [patched, ROOT / "tests" / "upstream" / "official", ROOT, ROOT / "client", folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.M)
    assert found, done.stdout[-3000:]
    return {test: outcome for outcome, test in found}


@pytest.mark.compiles
@pytest.mark.long
def test_the_tests_of_a_hook_pass_with_the_point_that_a_patch_adds(patched: Path, tmp_path: Path) -> None:
    assert outcomes(patched, *HOOKED, folder=tmp_path) == dict.fromkeys(HOOKED, "PASSED")


@pytest.mark.compiles
@pytest.mark.long
def test_without_hook_and_point_a_test_of_keys_fails(patched: Path, tmp_path: Path) -> None:
    (tmp_path / "ask_nothing").touch()
    assert outcomes(patched, HOOKED[0], folder=tmp_path) == {HOOKED[0]: "FAILED"}
