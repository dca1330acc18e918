"""Keep verified trust metadata in a folder of the node store, for each registry and pinned root.

A file is whole or absent. Nothing here is trusted: every file is verified again when it is read, and a store
that someone else filled neither has a start up nor leads a write out of the store.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from ..atomic import replacing
from ..node.store_files import open_plain_file
from ..wire.digest import Digest
from .updater import MAX_METADATA_BYTES


class LocalMetadata:
    """Keep the files of one registry in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_registry(cls, parent: Path, url: str, pinned: bytes) -> LocalMetadata:
        """Return the files that belong to a registry's address and a pinned root, below ``parent``."""
        return cls(parent / Digest.of(url.encode() + b"\0" + pinned).hex)

    def read(self, name: str) -> bytes | None:
        """Return a file; ``None`` if it is not here, cannot be read, or is larger than any metadata."""
        try:
            with os.fdopen(open_plain_file(self._folder / name, os.O_RDONLY), "rb") as file:
                data = file.read(MAX_METADATA_BYTES + 1)
        except OSError:
            return None
        return data if len(data) <= MAX_METADATA_BYTES else None

    def age(self, name: str) -> float | None:
        """Return how many seconds ago a file was written or confirmed; ``None`` if it is not here, or of the
        future."""
        try:
            age = time.time() - (self._folder / name).lstat().st_mtime
        except OSError:
            return None
        return max(0.0, age) if age > -1 else None

    def write(self, name: str, data: bytes) -> None:
        """Keep a file in place of an earlier one. A node store that is full or read-only keeps none."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.is_symlink():
                return
            with replacing(self._folder / name, 0o600) as file:
                file.write(data)

    def remove(self, name: str) -> None:
        """Remove a file if it is here."""
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()


class Remembering:
    """Keep files in memory too, for a node store that is full or read-only."""

    def __init__(self, local: LocalMetadata) -> None:
        self._local = local
        self._files: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        """Return a file; ``None`` if it is not here."""
        return self._files.get(name) or self._local.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Keep a file in place of an earlier one."""
        self._files[name] = data
        self._local.write(name, data)

    def remove(self, name: str) -> None:
        """Remove a file if it is here."""
        self._files.pop(name, None)
        self._local.remove(name)
