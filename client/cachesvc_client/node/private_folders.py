"""Owns the private cache folders of a node: one is emptied before its first use, and kept while a process
uses it."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from ..wire.digest import Digest
from ..wire.errors import StorageFull
from .path_owners import refuse_foreign
from .safe_files import FOLDER_FLAGS
from .store_files import StoreFiles, is_same_file, remove_entry

_log = logging.getLogger("cachesvc")
_MAX_OWN_FOLDERS = 4096
"""Number of processes of a node that can have a folder of their own at the same time."""


class PrivateFolders:
    """Opens private folders. A process holds a shared lock on each that it uses, until it leaves it or
    ends."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._handles: dict[Path, int] = {}

    def open(self, name: Digest) -> Path:
        """Opens the private cache folder of this name: 0700, ours, and kept while this process lives.

        The first process that uses a folder empties it; processes that come while it is in use share it. So
        files that were put there while no process used it are gone before a compiler can open them. Raises
        ``Untrusted`` if another user could write there.
        """
        path = self._files.path("folders", name.hex)
        with self._files.raise_storage_full(), self._files.lock(f"folder-{name.hex}"):
            while path not in self._handles:
                handle = self._empty_unless_used(path)
                if handle is None:
                    handle = os.open(path, FOLDER_FLAGS)
                os.utime(handle)
                fcntl.flock(handle, fcntl.LOCK_SH)
                # It may have been evicted between open and lock; then nobody else sees it.
                if is_same_file(handle, path):
                    self._handles[path] = handle
                else:
                    os.close(handle)
            refuse_foreign(path)
        return path

    def open_own(self, purpose: str) -> Path:
        """Opens an empty private folder that no other process gets while this one lives. Raises as `open`
        does, and ``StorageFull`` if too many are in use."""
        for number in range(_MAX_OWN_FOLDERS):
            name = Digest.of(f"{purpose} {number}".encode())
            path = self._files.path("folders", name.hex)
            with self._files.raise_storage_full(), self._files.lock(f"folder-{name.hex}"):
                handle = self._empty_unless_used(path)
                if handle is not None:
                    self._handles[path] = handle
                    os.utime(handle)
                    return path
        raise StorageFull(
            f"node store {self._files.root}: {_MAX_OWN_FOLDERS} folders for {purpose} are in use"
        )

    def leave(self, path: Path) -> None:
        """Ends this process's use of a folder, in which it neither read nor wrote anything."""
        handle = self._handles.pop(path, None)
        if handle is not None:
            os.close(handle)

    def _empty_unless_used(self, path: Path) -> int | None:
        """Opens and locks the folder, empty: it is made, or its content is removed. Returns ``None`` if a
        process uses it."""
        path.mkdir(mode=0o700, exist_ok=True)
        refuse_foreign(path)
        handle = os.open(path, FOLDER_FLAGS)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if not os.listdir(handle):
            return handle
        # No record says who made what an earlier process left, or what came since.
        _log.info("removed what lay in %s: its origin is unknown", path)
        # Moved in one step: a process that is killed here leaves an empty folder, or none.
        aside = self._files.temporary()
        os.rename(path, aside)
        os.close(handle)
        self._files.step("moved aside")
        path.mkdir(mode=0o700)
        handle = os.open(path, FOLDER_FLAGS)
        fcntl.flock(handle, fcntl.LOCK_EX)
        remove_entry(aside)
        return handle
