"""Keep bytes of the data folder's disk for the moment in which the disk is full.

A full disk can be repaired only by what writes: a database opens with new files, and each deletion is a
transaction. So a registry keeps a file that is of no use, and deletes it when the disk is nearly full. From
then on only those who make room may write; once there is room, the file is made again.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

from cachesvc_client.wire.errors import StorageFull

_log = logging.getLogger("cachesvc.reserve")

SHARE_OF_DISK = 16
"""A reserve is at most this part of its disk, so that small disks are not full of it."""
SHARE_LEFT = 4
"""The reserve is released when less than this part of its size is free beside it."""


class Reserve:
    """A file of ``size`` bytes, or fewer on a small disk; none without a path. Safe for use from several
    threads; each call costs one question to the file system."""

    def __init__(self, path: Path | None = None, size: int = 0) -> None:
        self._path, self._wanted = path, size
        self._lock = threading.Lock()
        self._short = False
        if path is not None and not size:
            with suppress(OSError):  # an earlier setting asked for one
                path.unlink(missing_ok=True)

    def tend(self) -> bool:
        """Release the reserve if the disk is full, or make it again if there is room. Return whether the disk
        is too full for anything but deletions."""
        if self._path is not None and self._wanted:
            # A disk that does not say what room it has is judged by the writes themselves.
            with self._lock, suppress(OSError):
                self._look(self._path)
        return self._short

    def demand(self) -> None:
        """Raise ``StorageFull`` while only deletions may write."""
        if self.tend():
            raise StorageFull(
                "the registry's disk is full: it is read-only until there is room",
                "make room on that disk: cachesvc admin entries delete, then gc --apply",
            )

    def _look(self, path: Path) -> None:
        found = os.statvfs(path.parent)
        free = found.f_bavail * found.f_frsize
        size = min(self._wanted, found.f_blocks * found.f_frsize // SHARE_OF_DISK)
        if path.is_file():
            full = free < size // SHARE_LEFT
            if full:
                path.unlink(missing_ok=True)
        else:
            full = free < size + size // 2 or not _make(path, size)
        if full != self._short:
            self._short = full
            said = "is full: the registry is read-only until there is room" if full else "has room again"
            _log.warning("the disk of %s %s", path.parent, said)


def _make(path: Path, size: int) -> bool:
    """Return whether the file is there with all of its bytes; what a killed process left is made anew."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        return False
    return True
