"""``python -m tools.release``: builds both distributions and tries what a user would install.

Everything happens in a temporary folder. ``make release-check`` runs it. The build itself needs no network;
what the distributions require comes from the index that pip is configured with. With ``--out FOLDER``
(``make release``) it makes every file of a release, twice, and compares them: `release_files` says which.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cachesvc
from cachesvc_client.config.settings import Config
from cachesvc_client.publication.signer import demand_signer
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError
from tools import release_files, try_release
from tools.release_files import ROOT, archive, run

SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "README.md")
"""What the registry's build reads beside the two packages and the example of ``cachesvc quickstart``."""


def main() -> int:
    """Builds, checks and installs; answers the exit status, after one line for each step."""
    parser = argparse.ArgumentParser(prog="make release-check", description=__doc__)
    parser.add_argument("--out", type=Path, help="make every file of a release, and put them here")
    parser.add_argument(
        "--unsigned", action="store_true", help="with --out: without a signature, for a trial"
    )
    parser.add_argument("--untried", action="store_true", help="with --out: without the quick start")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cachesvc-release-") as name:
        place = Path(name)
        try:
            if options.out is None:
                check(build(place), place)
            else:
                release(place, options)
        except subprocess.CalledProcessError as error:
            print(f"error: {' '.join(error.cmd)}\n{error.stdout}{error.stderr}", file=sys.stderr)
            return 1
        except CacheSvcError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


def check(built: list[Path], place: Path) -> None:
    """Checks what was built, and installs each distribution into an empty environment."""
    print("built:", *sorted(path.name for path in built))
    run(sys.executable, "-m", "twine", "check", "--strict", *built)
    print("metadata and readmes are sound")
    for distribution in ("cachesvc-client", "cachesvc"):
        print("installed and run:", install(distribution, built[0].parent, place))


def release(place: Path, options: argparse.Namespace) -> None:
    """Make every file of a release twice, in folders and environments that differ, and put them into a folder
    if all bytes are equal; signed, and tried as a new user does.

    Raise ``CacheSvcError`` if they are not equal, nothing signs, or the checkout is not its commit.
    """
    origin = release_files.origin()
    signer = (
        None
        if options.unsigned
        else demand_signer(Config.read(), "no signing key; ARGS=--unsigned needs none")
    )
    built = build(place / "first")
    first = release_files.make(built[0].parent)
    with another_environment():
        second = release_files.make(build(place / "second")[0].parent)
    release_files.demand_equal(first, second)
    release_files.origin()  # whose files nobody has changed meanwhile
    print(f"made twice, and equal: {len(list(first.iterdir()))} files of commit {origin.commit}")
    check(built, place)
    out = release_files.publish(first, options.out.resolve(), signer, origin)
    key = None if signer is None else signer.public
    for line in () if options.untried else try_release.steps(out, place / "new", key):
        print(line, flush=True)
    for path in sorted(out.iterdir()):
        if path.is_file():
            print(Digest.of(path.read_bytes()).hex, path.name)


@contextlib.contextmanager
def another_environment() -> Iterator[None]:
    """Run the programs of a block with what differs between machines: time zone, language, the order of sets,
    and the mode of new files."""
    before, mask = dict(os.environ), os.umask(0o077)
    os.environ.update(TZ="Pacific/Kiritimati", PYTHONHASHSEED="4711", LC_ALL="C", LANG="C")
    time.tzset()
    try:
        yield
    finally:
        os.umask(mask)
        os.environ.clear()
        os.environ.update(before)
        time.tzset()


def build(place: Path) -> list[Path]:
    """Makes the source distribution of each, and its wheel from that, in ``place/dist``. The same sources
    make the same bytes."""
    tree, dist = place / "tree", place / "dist"
    copy_sources(tree)
    for source in (tree / "client", tree):
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source)
    for sdist in dist.glob("*.tar.gz"):
        # setuptools writes the time of the build, the user and the modes of its files into it.
        with tarfile.open(sdist) as packed:
            packed.extractall(place / "unpacked", filter="data")
        archive(place / "unpacked" / sdist.name.removesuffix(".tar.gz"), sdist)
    return sorted(dist.iterdir())


def copy_sources(tree: Path) -> None:
    """Copies what both builds read, so that they leave nothing in the project's own tree. No file is to be
    run, so all have one mode."""

    def copy(source: str, target: str) -> None:
        shutil.copyfile(source, target)
        os.chmod(target, 0o644)

    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for folder in ("client", "cachesvc", "examples/quickstart"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=skip, copy_function=copy)
    for file in SOURCES:
        copy(str(ROOT / file), str(tree / file))


def install(distribution: str, dist: Path, place: Path) -> str:
    """Installs it into an empty environment and answers what its command prints as its version.

    Ours come from what was built and from nowhere else: a package of that name in an index is not asked for.
    """
    environment = place / f"venv-{distribution}"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    ours = ["cachesvc-client", "cachesvc"] if distribution == "cachesvc" else ["cachesvc-client"]
    try_release.install(environment / "bin/python", ours, "--no-index", "--find-links", dist)
    said = run(environment / "bin" / distribution, "--version").strip()
    if said != f"{distribution} {cachesvc.__version__}":
        raise subprocess.CalledProcessError(
            1, [distribution, "--version"], said, "another version was expected"
        )
    return said


if __name__ == "__main__":
    sys.exit(main())
