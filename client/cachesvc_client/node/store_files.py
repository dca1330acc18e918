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
from .path_owners import make_folders, refuse_foreign, refuse_foreign_path

LAYOUT = "v1"
"""Name of the folder below the root; a layout that is not compatible gets another one."""
FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors that say that there is no room."""
_POLL_SECONDS = 0.01
"""Seconds between two tries to take a lock for which a process does not wait for ever."""
_PARTS = (
    "packs",
    "partial",
    "locks",
    "seen",
    "distrusted",
    "resolved",
    "used",
    "starts",
    "loading",
    "folders",
    "users",
    "slow",
    "own",
    "jobs",
    "trust",
    "probes",
    "lists",
    "envelopes",
    "tmp",
)
"""Names of the folders of a store, see `node.store`."""


class StoreFiles:
    """Reads, writes, locks and removes files of the parts of a store.

    ``step`` receives the name of each step that was done, for tests that kill the process at a step.
    """

    def __init__(self, root: Path, step: Callable[[str], None]) -> None:
        """Makes the parts. Raises ``StorageFull`` if the root cannot be written, ``Untrusted`` if it is
        another user's, if another user could put another folder into its place, or if a part is a link: what
        is old is removed from the parts, and a store may come from a cache that others filled."""
        self.root = root
        self.step = step
        self._base = root / LAYOUT
        refuse_foreign_path(root)
        with self.raise_storage_full():
            make_folders(root)
            for part in ("", *_PARTS):
                (self._base / part).mkdir(mode=0o700, exist_ok=True)
                if (self._base / part).is_symlink():
                    raise Untrusted(f"node store: {self._base / part} is a link", "remove it")
        refuse_foreign(self._base)
        refuse_foreign_path(root)  # again: the folders that were missing are there now

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

    def read(self, part: str, name: str, limit: int) -> tuple[bytes, os.stat_result]:
        """Reads the first ``limit`` bytes of a file, and its status. Raises ``OSError`` for what is no plain
        file."""
        with os.fdopen(open_plain_file(self.path(part, name), os.O_RDONLY), "rb") as file:
            return file.read(limit), os.fstat(file.fileno())

    def put(self, part: str, name: str, data: bytes, age: float = 0.0) -> None:
        """Writes a whole file in place of an earlier one. Does not flush it to the disk, see `node.store`.

        ``age``: the time of its modification, as seconds before now.
        """
        temporary = self.temporary()
        temporary.write_bytes(data)
        if age:
            os.utime(temporary, (time.time() - age,) * 2)
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
    def lock(self, name: str, wait: bool = True, give_up: Callable[[], bool] | None = None) -> Iterator[None]:
        """Holds ``locks/<name>``. The lock ends with the process, however it ends, and is not inherited by a
        forked child.

        With ``wait=False``, and once ``give_up`` returns true, raises ``BlockingIOError`` if another process
        has it.
        """
        path = self.path("locks", name)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            _HELD.add(handle)
            try:
                _lock(handle, wait, give_up)
                # The file may have been swept between open and lock; then the lock guards nothing.
                if is_same_file(handle, path):
                    os.utime(handle)
                    yield
                    return
            finally:
                if handle in _HELD:  # else this is a forked child, which has closed it
                    _HELD.discard(handle)
                    with contextlib.suppress(OSError):
                        # A child that was forked a moment ago may have the handle too.
                        fcntl.flock(handle, fcntl.LOCK_UN)
                    os.close(handle)

    def hold_new(self, part: str) -> tuple[int, Path]:
        """Makes an empty file in a part, and returns its handle and its path. This process has its lock
        until it ends, however it ends; a forked child does not inherit it. Raises ``OSError``."""
        temporary = self.temporary()
        path = self.path(part, temporary.name)
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.rename(temporary, path)  # Nobody sees the file before it is locked.
        except OSError:
            os.close(handle)
            raise
        _HELD.add(handle)
        return handle, path

    def left_behind(self, part: str, limit: int) -> list[tuple[Path, bytes]]:
        """Lists the files of `hold_new` whose process has ended, with their first ``limit`` bytes."""
        left = []
        for path, _ in self.entries(part):
            with contextlib.suppress(OSError):  # held, or gone meanwhile, or no plain file
                handle = open_plain_file(path, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    left.append((path, os.read(handle, limit)))
                finally:
                    os.close(handle)
        return left

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


_HELD: set[int] = set()
"""Handles of the locks that this process holds or waits for."""


def _forget_inherited_locks() -> None:
    """Closes the handles that a forked child got of its parent's locks: a lock ends when every process that
    has it open has ended, and a worker outlives a download by days."""
    while _HELD:
        with contextlib.suppress(OSError):
            os.close(_HELD.pop())


os.register_at_fork(after_in_child=_forget_inherited_locks)


def _lock(handle: int, wait: bool, give_up: Callable[[], bool] | None) -> None:
    """Locks a file. Raises ``BlockingIOError`` where `StoreFiles.lock` does."""
    if give_up is None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if give_up():
                raise
        time.sleep(_POLL_SECONDS)


def open_plain_file(path: Path, flags: int) -> int:
    """Opens a regular file, and returns its handle. Follows no link in its place, and does not wait where a
    named pipe is. Raises ``OSError`` for what is no regular file."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file")
    return handle


def is_same_file(handle: int, path: Path) -> bool:
    """Returns whether the path still names the file that was opened."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except OSError:  # the path is gone, or the handle closed
        return False


def remove_entry(path: Path) -> None:
    """Removes a file, a link or a whole folder; does nothing about what cannot be removed."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
