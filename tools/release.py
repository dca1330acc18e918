"""``python -m tools.release``: builds both distributions and tries what a user would install.

Everything happens in a temporary folder. ``make release-check`` runs it. The build itself needs no network;
what the distributions require comes from the index that pip is configured with.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cachesvc

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "README.md")
"""What the registry's build reads beside the two packages."""


def main() -> int:
    """Builds, checks and installs; answers the exit status, after one line for each step."""
    parser = argparse.ArgumentParser(prog="make release-check", description=__doc__)
    parser.add_argument("--out", type=Path, help="also copy what was built into this folder")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory(prefix="cachesvc-release-") as name:
        place = Path(name)
        try:
            built = build(place)
            print("built:", *sorted(path.name for path in built))
            run(sys.executable, "-m", "twine", "check", "--strict", *built)
            print("metadata and readmes are sound")
            for distribution in ("cachesvc-client", "cachesvc"):
                print("installed and run:", install(distribution, place))
        except subprocess.CalledProcessError as error:
            print(f"error: {' '.join(error.cmd)}\n{error.stdout}{error.stderr}", file=sys.stderr)
            return 1
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for path in built:
                shutil.copy(path, out)
    return 0


def build(place: Path) -> list[Path]:
    """Makes the source distribution of each, and its wheel from that, in ``place/dist``."""
    tree, dist = place / "tree", place / "dist"
    copy_sources(tree)
    for source in (tree / "client", tree):
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source)
    return list(dist.iterdir())


def copy_sources(tree: Path) -> None:
    """Copies what both builds read, so that they leave nothing in the project's own tree."""
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT / "client", tree / "client", ignore=skip)
    shutil.copytree(ROOT / "cachesvc", tree / "cachesvc", ignore=skip)
    for file in SOURCES:
        shutil.copy(ROOT / file, tree)


def install(distribution: str, place: Path) -> str:
    """Installs it into an empty environment and answers what its command prints as its version.

    Ours come from what was built and from nowhere else: a package of that name in an index is not asked for.
    """
    environment = place / f"venv-{distribution}"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin/python")
    ours = ["cachesvc-client", "cachesvc"] if distribution == "cachesvc" else ["cachesvc-client"]
    run(*pip, "install", "-q", "--no-index", "--find-links", place / "dist", "--no-deps", *ours)
    code = f"import importlib.metadata as m; print(*(r for n in {ours!r} for r in m.requires(n)), sep='\\n')"
    needed = run(environment / "bin/python", "-I", "-c", code).splitlines()
    run(
        *pip,
        "install",
        "-q",
        *(line for line in needed if not line.startswith("cachesvc") and "extra" not in line),
    )
    run(*pip, "check")
    said = run(environment / "bin" / distribution, "--version").strip()
    if said != f"{distribution} {cachesvc.__version__}":
        raise subprocess.CalledProcessError(
            1, [distribution, "--version"], said, "another version was expected"
        )
    return said


def run(*command: object, cwd: Path | None = None) -> str:
    """Runs a program and answers what it printed. Raises ``CalledProcessError`` with all that it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=cwd, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
