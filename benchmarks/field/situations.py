"""The restarts and hosts that each cache is tried with. None of them changes what is compiled."""

from __future__ import annotations

import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Situation:
    """Says in which one thing a start is unlike the builder's.

    Attributes:
        name: What is another one.
        kind: ``restarts`` or ``hosts``.
        script: Lines of a shell before the process. ``$used`` is the folder in which the cache keeps its
            files, ``$free`` an empty one.
        variables: Variables of the process; a value may begin with ``$place``.
        work: Another working directory, below ``$place``.
        processes: How many start at once.
        damage: What happened to each file that is reused.
    """

    name: str
    kind: str
    script: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    work: str = ""
    processes: int = 1
    damage: Callable[[bytes], bytes] | None = None

    def command(self, words: list[str], **folders: Path) -> list[str]:
        """Return the command of a process. Mounts are its own, and end with it."""
        if not self.script:
            return words
        lines = [f"{name}={shlex.quote(str(path))}" for name, path in folders.items()]
        script = "\n".join(["set -e", *lines, self.script, 'exec "$@"'])
        shell = ["sh", "-c", script, "sh", *words]
        return ["unshare", "--mount", *shell] if "mount" in self.script else shell

    def possible(self) -> bool:
        """Return whether this machine lets it happen: some need the right to mount."""
        words = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        needs_mounts = "mount" in self.script
        return not needs_mounts or subprocess.run(words, capture_output=True, check=False).returncode == 0


def with_another_byte(data: bytes) -> bytes:
    """Return the data with another byte in the middle."""
    half = len(data) // 2
    return data[:half] + bytes(255 - byte for byte in data[half : half + 1]) + data[half + 1 :]


_BIND = 'mount --bind "$used" "$used"\nmount -o remount,bind,{} "$used"'
_FULL = (
    'mount -t tmpfs -o size=$(( $(du -sk "$used" | cut -f1) + 64 ))k tmpfs "$free"\n'
    'cp -a "$used/." "$free"\nmount --bind "$free" "$used"'
)
ALL = (
    Situation("the same again", "restarts"),
    Situation("another working directory", "restarts", work="another"),
    Situation("another HOME", "restarts", variables={"HOME": "$place/home"}),
    Situation("another PYTHONHASHSEED", "restarts", variables={"PYTHONHASHSEED": "7"}),
    Situation("umask 077", "restarts", "umask 077"),
    Situation("a package was installed by pip", "restarts", variables={"PYTHONPATH": "$installed"}),
    Situation("two at once", "restarts", processes=2),
    Situation("a space in HOME", "hosts", variables={"HOME": "$place/my home"}),
    Situation("a space in TMPDIR", "hosts", variables={"TMPDIR": "$place/my tmp"}),
    Situation("its folder is read-only", "hosts", _BIND.format("ro")),
    Situation("its folder is noexec", "hosts", _BIND.format("noexec")),
    Situation("its folder has 64 KiB left", "hosts", _FULL),
    Situation("each file was cut in half", "hosts", damage=lambda data: data[: len(data) // 2]),
    Situation("a byte of each file is another one", "hosts", damage=with_another_byte),
)


def install_a_package(folder: Path) -> Path:
    """Install an unrelated package with pip, and return the folder with it."""
    wheel, about = folder / "unrelated-1.0-py3-none-any.whl", "unrelated-1.0.dist-info/"
    folder.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("unrelated.py", "VALUE = 1\n")
        archive.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: unrelated\nVersion: 1.0\n")
        archive.writestr(about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(about + "RECORD", "")
    options = ["--quiet", "--no-index", "--no-deps", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    return folder / "site"
