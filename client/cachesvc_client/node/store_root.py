"""Decides where the node store lies: in the first of the usual folders that passes the probe."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from ..wire.errors import StorageFull
from .folder_probe import FolderProbe, is_plain_path, probe_folder

SETTING = "CACHESVC_STORE"
"""The variable with which a user names the node store."""

_LAST = Path("/var/tmp")
"""Where every user may make a folder, on disk, whatever the environment says."""


class NoFolder(StorageFull):
    """Reports that this machine has no folder in which the store and compilers can work. A store that the
    user named has a warning of its own."""

    quiet = True


class StoreChoice(NamedTuple):
    """The folder that was chosen, ``None`` if no one can be used, and the ones before it that were not."""

    root: Path | None
    refused: tuple[FolderProbe, ...]

    def demand(self) -> Path:
        """Return the folder. Raise ``NoFolder``, which says what each one lacks, if there is none."""
        if self.root is None:
            raise NoFolder(
                "node store: no folder can be used: " + "; ".join(map(str, self.refused)),
                f"set {SETTING} to a folder that can: cachesvc-client doctor shows each",
            )
        return self.root


def candidates(named: Path | None = None) -> list[Path]:
    """Return where a store may lie, in order: the folder that the user named, ``XDG_CACHE_HOME/cachesvc``,
    ``~/.cache/cachesvc`` and ``$TMPDIR/cachesvc-<uid>``; where no compiler takes any of these paths,
    ``/var/tmp/cachesvc-<uid>`` too."""
    usual = [
        Path(os.environ.get("XDG_CACHE_HOME", "")) / "cachesvc",
        _home() / ".cache" / "cachesvc",
    ]
    with contextlib.suppress(OSError):  # there is no folder for temporary files
        usual.append(Path(tempfile.gettempdir()) / f"cachesvc-{os.geteuid()}")
    every = [*([named] if named is not None else []), *(root for root in usual if root.is_absolute())]
    if not any(map(is_plain_path, every)):
        every.append(_LAST / f"cachesvc-{os.geteuid()}")
    return list(dict.fromkeys(every))


def probe_candidate(root: Path) -> FolderProbe:
    """Return what the probe says of a candidate. A home that is absent is not made."""
    home = _home()
    if home in root.parents and not os.path.isdir(home):
        return FolderProbe(root, "write", f"the home folder {home} does not exist")
    return probe_folder(root)


def choose_store(named: Path | None = None) -> StoreChoice:
    """Choose the first folder that passes the probe; ``named`` is the one that the user named. Raise
    nothing."""
    refused: list[FolderProbe] = []
    for root in candidates(named):
        found = probe_candidate(root)
        if found.usable:
            return StoreChoice(root, tuple(refused))
        refused.append(found)
    return StoreChoice(None, tuple(refused))


def store_root(named: Path | None = None) -> Path:
    """Return the folder of `choose_store`. Raise ``NoFolder`` if there is none."""
    return choose_store(named).demand()


def _home() -> Path:
    return Path(os.path.expanduser("~"))
