"""Build the examples' wheels offline, and install them into a folder that is on no path."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def install(place: Path, *examples: str) -> Path:
    """Return a folder with each distribution, installed from its wheel."""
    for example in examples:
        source = place / "source" / example
        shutil.copytree(REPOSITORY / "examples" / example, source)
        _pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(place), str(source))
    wheels = list(map(str, place.glob("*.whl")))
    assert len(wheels) == len(examples)
    _pip("install", "--no-deps", "--no-index", "--target", str(place / "installed"), *wheels)
    return place / "installed"


def passes_its_kit(example: str, variables: dict[str, str]) -> str:
    """Run the tests of an example, and return what pytest printed. None of them may be skipped."""
    [tests] = (REPOSITORY / "examples" / example).glob("test_*.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(tests)],
        env=variables,
        cwd=variables["PYTHONPATH"].partition(":")[0],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:]
    assert "skipped" not in done.stdout
    return done.stdout


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
