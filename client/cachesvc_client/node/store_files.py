"""Owns the files of the node store: its parts, its locks, and their removal while other processes use
them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..wire.errors import StorageFull, Untrusted

LAYOUT = "v1"
"""Name of the folder below the root; a layout that is not compatible gets another one."""
FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors that say that there is no room."""
_PARTS = ("packs", "partial", "locks", "seen", "distrusted", "resolved", "folders", "own", "jobs", "tmp")
"""Names of the folders of a store, see `node.store`."""


class StoreFiles:
    """Reads, writes, locks and removes files of the parts of a store.

    ``step`` receives the name of each step that was done, for tests that kill the process at a step.
    """

    def __init__(self, root: Path, step: Callable[[str], None]) -> None:
        """Makes the parts. Raises ``StorageFull`` if the root cannot be written, ``Untrusted`` if it is
        another user's."""
        self.root = root
        self.step = step
        self._base = root / LAYOUT
        with self.raise_storage_full():
            root.mkdir(parents=True, exist_ok=True)
            for part in ("", *_PARTS):
                (self._base / part).mkdir(mode=0o700, exist_ok=True)
        refuse_foreign(self._base)

    def path(self, part: str, name: str) -> Path:
        """Names a file of a part."""
        return self._base / part / name

    def temporary(self) -> Path:
        """Names a new file or folder in ``tmp``."""
        return self.path("tmp", secrets.token_hex(8))

    def entries(self, part: str) -> Iterator[tuple[Path, os.stat_result]]:
        """Yields the entries of a part and their status."""
        for path in (self._base / part).iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process evicts too
                yield path, path.lstat()

    def older(self, part: str, seconds: float) -> list[Path]:
        """Lists the entries of a part that were last changed that long ago."""
        before = time.time() - seconds
        return [path for path, status in self.entries(part) if status.st_mtime < before]

    def put(self, part: str, name: str, data: bytes) -> None:
        """Writes a whole file in place of an earlier one. Does not flush it to the disk, see `node.store`."""
        temporary = self.temporary()
        temporary.write_bytes(data)
        os.replace(temporary, self.path(part, name))

    def sweep(self, part: str, seconds: float) -> None:
        """Removes the entries that were last changed that long ago. A lock that a process holds stays."""
        for path in self.older(part, seconds):
            if part == "locks":
                self.remove_unless_used(path)
            else:
                remove_entry(path)

    def remove_unless_used(self, path: Path) -> bool:
        """Removes an entry under the exclusive lock, which readers of a pack and users of a folder hold
        shared; returns false if it is in use."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside = self.temporary()
            os.rename(path, aside)
        except OSError:
            return False
        finally:
            os.close(handle)
        remove_entry(aside)
        return True

    @contextmanager
    def lock(self, name: str, wait: bool = True) -> Iterator[None]:
        """Holds ``locks/<name>``. The lock ends with the process, however it ends. With ``wait=False`` raises
        ``BlockingIOError`` if another process holds it."""
        path = self.path("locks", name)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                # The file may have been swept between open and lock; then the lock guards nothing.
                if is_same_file(handle, path):
                    os.utime(handle)
                    yield
                    return
            finally:
                os.close(handle)

    @contextmanager
    def raise_storage_full(self) -> Iterator[None]:
        """Raises each ``OSError`` of the block as one clear ``StorageFull``."""
        try:
            yield
        except OSError as error:
            raise StorageFull(
                f"node store {self.root}: {error.strerror or error}",
                "free some room" if error.errno in FULL_ERRORS else "set CACHESVC_STORE to a writable folder",
            ) from error


def is_same_file(handle: int, path: Path) -> bool:
    """Returns whether the path still names the file that was opened."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def refuse_foreign(path: Path) -> None:
    """Raises ``Untrusted`` for what is no folder, or a folder in which another user may write."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise Untrusted(f"node store: {path} is not a folder")
    if status.st_uid != os.geteuid():
        raise Untrusted(f"node store: {path} belongs to user {status.st_uid}", "set CACHESVC_STORE")
    if status.st_mode & 0o022:
        raise Untrusted(f"node store: others may write to {path}", f"chmod go-w {path}")


def remove_entry(path: Path) -> None:
    """Removes a file, a link or a whole folder; does nothing about what cannot be removed."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
