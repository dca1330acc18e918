"""Test the recipe of a shared folder: one user publishes signed bundles, services of other users of its group
start from them, and nobody else can read them or slip one in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cachesvc_client.bundle.file import open_bundle, replace_envelope
from cachesvc_client.bundle.seal import SigningKey, strict_base64
from cachesvc_client.wire.codec import parse_json
from cachesvc_client.wire.manifest.records import MAX_ENVELOPE_BYTES, PAYLOAD_TYPE
from tests.documents.markdown import DOCS, blocks

from .harness import WARMED

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of three users"),
]
PUBLISHER, SERVICE, STRANGER, GROUP = 61_001, 61_002, 61_003, 61_010
PROGRAM = """\
import torch

torch.manual_seed(0)
with torch.no_grad():
    print("answer", float(torch.compile(lambda x: x.cos() * 2 + 1)(torch.ones(8)).sum()))
"""
SPEC = 'name = "team/shared"\n[[target]]\nid = "answer"\nscript = "answer.py"\n'


@dataclass
class User:
    """A user with a home below ``root``, and nothing else that others have."""

    root: Path
    uid: int
    groups: tuple[int, ...] = ()
    home: Path = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.root / str(self.uid)
        self.home.mkdir(mode=0o700)
        for name, text in (("answer.py", PROGRAM), ("warm.toml", SPEC)):
            (self.home / name).write_text(text)
        for path in (self.home, *self.home.iterdir()):
            os.chown(path, self.uid, self.uid)

    def run(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of this user."""
        environ = {
            **{name: os.environ[name] for name in ("LANG", "LD_LIBRARY_PATH") if name in os.environ},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            **WARMED,
            **variables,
        }
        groups = f"--groups={','.join(map(str, self.groups))}" if self.groups else "--clear-groups"
        become = ("setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", groups, "--")
        return subprocess.run(
            [*_open_python(self.root), *become, *map(str, words)],
            cwd=self.home,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def _open_python(root: Path) -> tuple[str, ...]:
    """Return what shows a command this Python below a folder that is closed to other users, such as root's
    home, and nothing else of that folder; nothing where no folder is closed."""
    base, aside = Path(sys.base_prefix), root / "python"
    closed = [parent for parent in reversed(base.parents) if not parent.stat().st_mode & 0o001]
    if not closed:
        return ()
    aside.mkdir(exist_ok=True)
    shown = 'mount --bind "$0" "$1" && mount -t tmpfs -o mode=755 none "$2" && mkdir -p "$0"'
    script = f'{shown} && mount --bind "$1" "$0" && shift 2 && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, str(base), str(aside), str(closed[0]))


@dataclass
class Site:
    """A machine with a shared folder that holds one entry of the publisher."""

    folder: Path
    publisher: User
    trusted: str

    def start(self, user: User) -> subprocess.CompletedProcess[str]:
        """Start the service as a user, by the recipe."""
        variables = {"CACHESVC_BUNDLE": str(self.folder), "CACHESVC_TRUSTED_KEYS": f"team={self.trusted}"}
        words = ("cachesvc", "run", "team/shared", "--", "python", "answer.py")
        return user.run(*words, CACHESVC_LOG="info", **variables)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    # pytest's own folder is root's alone.
    root = Path(tempfile.mkdtemp(prefix="shared-"))
    try:
        root.chmod(0o711)
        publisher = User(root, PUBLISHER, (GROUP,))
        if publisher.run("python", "-c", "import cachesvc, torch").returncode:
            pytest.skip("other users cannot read this checkout or its environment")
        folder = root / "bundles"
        [made] = [line for line in recipe() if line.startswith("install ")]
        mode = made.split("-m ")[1].split()[0]
        folder.mkdir()
        os.chown(folder, PUBLISHER, GROUP)
        folder.chmod(int(mode, 8))
        key = publisher.run("cachesvc", "keygen", "signing.key")
        warmed = publisher.run(
            *("cachesvc", "warm", "warm.toml", "--out", folder),
            CACHESVC_SIGNING_KEY=str(publisher.home / "signing.key"),
        )
        assert warmed.returncode == 0, warmed.stdout + warmed.stderr
        yield Site(folder, publisher, key.stdout.strip())
    finally:
        shutil.rmtree(root)


def recipe() -> list[str]:
    """Return the commands of the page."""
    text = (DOCS / "recipes" / "deployment.md").read_text().partition("\n## A folder for a group\n")[2]
    return [line for block in blocks(text, "sh") for line in block.splitlines()]


def test_a_service_of_the_group_compiles_nothing_and_keeps_its_own_store_private(site: Site) -> None:
    service = User(site.folder.parent, SERVICE, (GROUP,))
    done = site.start(service)
    assert done.returncode == 0 and "answer " in done.stdout, done.stderr
    assert "team/shared:latest: hit: nothing compiled" in done.stderr, done.stderr
    assert (service.home / ".cache/cachesvc").stat().st_mode & 0o077 == 0
    assert service.run("sh", "-c", f"echo x > {site.folder}/x.cachesvc").returncode != 0
    [bundle] = site.folder.glob("*.cachesvc")
    assert service.run("sh", "-c", f"echo x >> {bundle}").returncode != 0


def test_who_is_not_of_the_group_reads_nothing_and_compiles(site: Site) -> None:
    done = site.start(User(site.folder.parent, STRANGER))
    assert done.returncode == 0 and "answer " in done.stdout, done.stderr
    assert "nothing compiled" not in done.stderr
    assert str(site.folder) in done.stderr, "one line says why"


def test_a_bundle_of_somebody_else_s_key_is_refused_and_the_others_count(site: Site) -> None:
    """Whoever may write into the folder can still not make a service run what nobody trusted has signed."""
    [bundle] = site.folder.glob("*.cachesvc")
    envelope, _ = open_bundle(bundle)
    payload = strict_base64(parse_json(envelope, limit=MAX_ENVELOPE_BYTES, what="envelope")["payload"])
    other = SigningKey.generate()
    forged = site.folder / "another.cachesvc"
    try:
        replace_envelope(bundle, forged, other.sign_bytes(payload, PAYLOAD_TYPE))
        done = site.start(User(site.folder.parent, SERVICE + 10, (GROUP,)))
        assert "team/shared:latest: hit: nothing compiled" in done.stderr, done.stderr
        bundle.rename(site.folder / "aside")
        done = site.start(User(site.folder.parent, SERVICE + 11, (GROUP,)))
        assert done.returncode == 0 and "nothing compiled" not in done.stderr, done.stderr
        assert other.public.keyid in done.stderr and "not trusted" in done.stderr, done.stderr
    finally:
        forged.unlink(missing_ok=True)
        if (site.folder / "aside").exists():
            (site.folder / "aside").rename(bundle)
