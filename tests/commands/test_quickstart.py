"""Test `cachesvc quickstart`: one command to a proven hit, which leaves the user's own files alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FIRST_LINES = {
    "models.py": '"""The model',
    "serve.py": '"""The service',
    "warm.toml": 'name = "demo/classifier"',
}


def quickstart(folder: Path, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    home.mkdir(exist_ok=True)
    kept = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
    }
    return subprocess.run(
        [sys.executable, "-m", "cachesvc", "quickstart", str(folder)],
        env={**kept, "HOME": str(home), **variables},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.compiles
@pytest.mark.timeout(1400)
def test_one_command_shows_a_proven_hit_and_writes_below_its_folder_alone(tmp_path: Path) -> None:
    """The variables that the user has set for services count for nothing."""
    folder, home = tmp_path / "new" / "folder", tmp_path / "home"
    ran = quickstart(folder, home, CACHESVC_URL="http://127.0.0.1:9", CACHESVC_MODE="off")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "The second start compiled nothing." in ran.stdout
    assert "demo/classifier:latest: hit: nothing compiled, " in ran.stderr
    cold, warm = map(float, re.findall(r"first answer after ([0-9.]+) s", ran.stdout))
    assert warm < cold
    commands = re.findall(r"^\$ (?:[A-Z_]+=\S+ )?(cachesvc \w+|python)", ran.stdout, re.MULTILINE)
    steps = [
        "cachesvc serve",
        "cachesvc login",
        "cachesvc warm",
        "python",
        "cachesvc run",
        "cachesvc explain",
    ]
    assert commands == steps
    assert {path.name for path in home.iterdir()} == set()
    again = quickstart(folder, home)
    assert (again.returncode, again.stdout) == (2, "")
    assert "is not empty (name a new folder: cachesvc quickstart FOLDER)" in again.stderr


def test_a_registry_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    folder, home = tmp_path / "folder", tmp_path / "home"
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "uvicorn.py").write_text("raise ImportError('no uvicorn here')\n")
    path = os.pathsep.join([str(broken), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = quickstart(folder, home, PYTHONPATH=path)
    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert line.startswith("error: the registry did not start: ") and "registry.log" in line
    for name, beginning in FIRST_LINES.items():
        assert (folder / name).read_text().startswith(beginning)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = quickstart(tmp_path / "file" / "folder", tmp_path / "home")
    assert ran.returncode == 2 and "Not a directory" in ran.stderr and len(ran.stderr.splitlines()) == 1
