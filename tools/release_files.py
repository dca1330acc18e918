"""What a release has beside the distributions: the chart, the documents, lists of what they require
(CycloneDX), the change log, the sums, and a signed statement of who built all of it from what.

The same commit makes the same bytes: no file has the time of its build, a user, a path or a mode of this
machine. What a compressor writes depends on its version, so another Python may make other archives.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import cachesvc
from cachesvc.queries.release import BUILD_TYPE, SUFFIX
from cachesvc.warm.checkout import Checkout, find_checkout, tree_of
from cachesvc_client.bundle.seal import Signer
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest
from cachesvc_client.wire.manifest.provenance import (
    ATTESTATION,
    CHECKOUT,
    CLEAN,
    LOCAL_BUILDER,
    TREE,
    Dependency,
    Provenance,
)

ROOT = Path(__file__).parents[1]
VERSION = cachesvc.__version__
SUMS = "SHA256SUMS"
REQUIREMENTS = {"cachesvc-client": "requirements/client.txt", "cachesvc": "requirements/server.txt"}
"""Each distribution's pinned and hashed set, of which its list of components is made."""
BUILDERS = ("setuptools", "build", "towncrier", "cyclonedx-bom")
"""Distributions that decide the bytes of a release; those of the documents are pinned in the commit."""
FIRST_ZIP_TIME = 315_532_800
"""The first second of 1980, the earliest time that a wheel can name."""


def run(
    *command: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, text: str = ""
) -> str:
    """Runs a program and answers what it printed. Raises ``CalledProcessError`` with all that it printed.

    It has the time of the commit as that of the build, and new files have the usual mode: both are in wheels.
    """
    words = [str(word) for word in command]
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=cwd,
        check=True,
        umask=0o022,
        input=text,
        env={**(os.environ if env is None else env), "SOURCE_DATE_EPOCH": str(commit_time())},
    ).stdout


@cache
def commit_time() -> int:
    """Return when the commit of this checkout was made, in seconds of UTC; without one, the first second that
    a wheel can name."""
    ask = ("git", "-c", "safe.directory=*", "log", "-1", "--format=%ct")
    asked = (
        subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False)
        if shutil.which("git")
        else None
    )
    return int(asked.stdout) if asked and asked.returncode == 0 else FIRST_ZIP_TIME


def archive(folder: Path, target: Path) -> None:
    """Pack a folder as a tar file. The same names and contents make the same bytes."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = commit_time()
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with (
        open(target, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=commit_time()) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        tar.add(folder, folder.name, filter=plain)


def origin() -> Checkout:
    """Return the checkout of which the release is made. Raise ``InvalidRequest`` unless its files are those
    of its commit."""
    checkout = find_checkout(ROOT)
    if checkout is None:
        raise InvalidRequest("a release is made of a commit, and this is no checkout of Git")
    tree = tree_of(checkout)
    if tree.changed != 0:
        raise InvalidRequest(
            f"the files are not those of the commit: {', '.join(tree.files[:5]) or 'unknown'}"
        )
    return checkout


def make(dist: Path) -> Path:
    """Add to the distributions in a folder every other file of a release, and return the folder."""
    archive(ROOT / "deploy/helm/cachesvc", dist / f"cachesvc-chart-{VERSION}.tgz")
    site = dist.parent / VERSION
    mkdocs = (ROOT / ".venv-docs/bin/mkdocs", "build", "--strict", "--quiet", "--site-dir", site)
    run(*mkdocs, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    run(sys.executable, ROOT / "tools/check_site.py", site)
    archive(site, dist / f"cachesvc-docs-{VERSION}.tar.gz")
    for distribution in REQUIREMENTS:
        (dist / f"{distribution}-{VERSION}.cdx.json").write_text(components(distribution))
    (dist / f"CHANGES-{VERSION}.md").write_text(changes())
    sums = [f"{Digest.of(path.read_bytes()).hex}  {path.name}\n" for path in sorted(dist.iterdir())]
    (dist / SUMS).write_text("".join(sums))
    return dist


def components(distribution: str) -> str:
    """Return what a distribution requires, in CycloneDX's JSON: the pinned set with which it is tested."""
    pinned = (ROOT / REQUIREMENTS[distribution]).read_text()
    if distribution == "cachesvc":
        pinned += f"\ncachesvc-client=={VERSION}\n"
    project = ROOT / ("client" if distribution == "cachesvc-client" else ".") / "pyproject.toml"
    words = ("requirements", "--pyproject", project, "--output-reproducible", "--mc-type", "library", "-")
    made = json.loads(run(sys.executable, "-m", "cyclonedx_py", *words, text=pinned))
    component = made["metadata"]["component"]
    component.update(version=VERSION, purl=f"pkg:pypi/{distribution}@{VERSION}")
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


def changes() -> str:
    """Return what the change log says of this version: its section, or what the fragments would make."""
    written = re.split(r"^(?=## )", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    section = [part for part in written if part.startswith(f"## {VERSION} ")]
    date = time.strftime("%Y-%m-%d", time.gmtime(commit_time()))
    return (
        section[0]
        if section
        else run(sys.executable, "-m", "towncrier", "build", "--draft", "--date", date, cwd=ROOT)
    )


def demand_equal(first: Path, second: Path) -> None:
    """Raise ``Corrupt``, which names the files, unless both folders have the same files with the same
    bytes."""
    sums = [
        {path.name: Digest.of(path.read_bytes()) for path in folder.iterdir()} for folder in (first, second)
    ]
    other = sorted(name for name in sums[0].keys() | sums[1].keys() if sums[0].get(name) != sums[1].get(name))
    if other:
        raise Corrupt(f"two builds of one commit differ: {', '.join(other)}")


def publish(made: Path, out: Path, signer: Signer | None, checkout: Checkout) -> Path:
    """Put the files of a release, and the signed statement about them, into a folder that may have older
    ones; its ``site`` gets this version beside those that are there. Return the folder."""
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(made.iterdir())
    for path in files:
        shutil.copy(path, out)
    with tarfile.open(out / f"cachesvc-docs-{VERSION}.tar.gz") as packed:
        shutil.rmtree(out / "site" / VERSION, ignore_errors=True)
        packed.extractall(out / "site", filter="data")
    switch_versions(out / "site")
    if signer is not None:
        envelope = signer.sign_bytes(canonical(statement(files, checkout)), ATTESTATION)
        (out / f"cachesvc-{VERSION}{SUFFIX}").write_bytes(envelope)
    return out


def statement(files: list[Path], checkout: Checkout) -> dict[str, object]:
    """Return who built these files of which commit, as an in-toto statement with SLSA's provenance."""
    commit = Dependency(CHECKOUT, checkout.uri, {"gitCommit": checkout.commit}, {TREE: CLEAN})
    with_ = [Dependency(name, f"pkg:pypi/{name}@{_installed(name)}") for name in BUILDERS]
    built = Provenance(
        LOCAL_BUILDER,
        {"version": VERSION},
        {"python": sys.version.split()[0]},
        (commit, *with_),
        version=VERSION,
        build_type=BUILD_TYPE,
    ).statement("", Digest.of(b""))
    subjects = [{"name": path.name, "digest": {"sha256": Digest.of(path.read_bytes()).hex}} for path in files]
    return {**built, "subject": subjects}


def _installed(name: str) -> str:
    return importlib.metadata.version(name)


def switch_versions(site: Path) -> None:
    """Write what a page's switch of versions reads, and a first page that leads to the newest one: of the
    folders that are there."""
    numbered = [path.name for path in site.iterdir() if re.fullmatch(r"\d+(\.\d+)+", path.name)]
    versions = sorted(numbered, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    rows = [
        {"version": name, "title": name, "aliases": ["latest"] * (name == versions[0])} for name in versions
    ]
    (site / "versions.json").write_text(json.dumps(rows) + "\n")
    newest = f'<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">'
    (site / "index.html").write_text(f"<!DOCTYPE html>\n<title>cachesvc</title>\n{newest}\n")
