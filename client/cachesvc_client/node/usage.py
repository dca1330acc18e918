"""Measure and empty a node store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .parts.pack_store import JUST_USED_SECONDS
from .parts.private_folders import PrivateFolders
from .store_files import LAYOUT, StoreFiles, remove_entry

_CACHED = {
    "packs": "packs of revisions",
    "folders": "private cache folders",
    "own": "what this node compiled itself",
    "resolved": "answers of registries",
}
"""Parts that `remove_cached` empties, and what each holds. The others are small. Some are under way, and some
are the node's memory of what it must not accept: revisions that it distrusts, the newest ones that it has
seen, and trust metadata."""


@dataclass(frozen=True, slots=True)
class PartUsage:
    """Says what a part of a store holds. ``bytes``: the lengths of its files."""

    part: str
    holds: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Removal:
    """Counts what was removed from a store, and the entries that stay because a process uses them."""

    removed: int
    bytes: int
    in_use: int


def measure(root: Path) -> list[PartUsage]:
    """Return what each part of the store holds; makes nothing. A store that is absent has nothing."""
    usage = []
    for part, holds in _CACHED.items():
        entries = [*_entries(root / LAYOUT / part)]
        usage.append(PartUsage(part, holds, len(entries), sum(_bytes(path) for path in entries)))
    return usage


def remove_cached(root: Path) -> Removal:
    """Remove all that the store can get again, but what a process uses now.

    What protects the node stays: see `_CACHED`. Raises what `StoreFiles` raises.
    """
    files = StoreFiles(root, lambda _step: None)
    removed = size = in_use = 0
    for part in _CACHED:
        entries = [(path, _bytes(path)) for path in _entries(root / LAYOUT / part)]
        if part == "folders":
            with files.raise_storage_full():
                PrivateFolders(files).sweep(settled=0)
        for path, held in entries:
            if part == "folders":
                if path.exists():
                    in_use += 1
                    continue
            elif part == "resolved":
                remove_entry(path)
            elif (part == "packs" and _just_used(path)) or not files.remove_unless_used(path):
                in_use += 1
                continue
            removed += 1
            size += held
    return Removal(removed, size, in_use)


def _just_used(path: Path) -> bool:
    """Return whether a pack was handed out so lately that its reader may not have its lock yet."""
    try:
        return path.stat().st_mtime > time.time() - JUST_USED_SECONDS
    except OSError:
        return False


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return


def _bytes(path: Path) -> int:
    """Return the bytes of a file or a folder; a file that goes away meanwhile has none."""
    if not path.is_dir() or path.is_symlink():
        try:
            return path.lstat().st_size
        except OSError:
            return 0
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(_bytes(file) for file in files)
