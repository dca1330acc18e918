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
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman put into each container."""
_MAX_LINKS = 40
"""Largest number of links on the way to the root, as many as Linux follows."""
_OTHER_USER = "set CACHESVC_STORE to a folder below your own ones; a store of an agent is CACHESVC_NODE_STORE"
"""Hint for a store that belongs to another user."""
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
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        holds it.
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
        """Makes an empty file in a part, and returns its handle and its path. This process holds its lock
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


def refuse_foreign(path: Path) -> None:
    """Raises ``Untrusted`` for what is no folder, or a folder in which another user may write."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise Untrusted(f"node store: {path} is not a folder")
    if status.st_uid != os.geteuid():
        raise Untrusted(f"node store: {path} belongs to user {status.st_uid}", _OTHER_USER)
    if status.st_mode & 0o022:
        raise Untrusted(f"node store: others may write to {path}", f"chmod go-w {path}")


def refuse_foreign_path(path: Path) -> None:
    """Raises ``Untrusted`` if another user could put another folder into the place of ``path``.

    This is so where ``path`` or a folder above it belongs to another user than this one and root, is a link
    of such a user, or may be written by others and is not sticky. Passes over folders that are missing. A
    user of whom this process's user namespace knows nothing is as good as root (Apptainer, bubblewrap).
    """
    _refuse_foreign_path(Path(os.path.abspath(path)), _MAX_LINKS)


def _refuse_foreign_path(path: Path, links: int) -> None:
    for folder in (*reversed(path.parents), path):
        try:
            status = folder.lstat()
        except OSError:  # not there yet, or not to be seen: the store cannot be opened then
            return
        if _is_volume(folder):
            continue
        if status.st_uid not in (0, os.geteuid()) and not _is_of_host(folder, status):
            raise Untrusted(
                f"node store {path}: {folder} belongs to user {status.st_uid}",
                _OTHER_USER,
            )
        if stat.S_ISLNK(status.st_mode):
            if not links:
                raise Untrusted(f"node store {path}: too many links at {folder}", "set CACHESVC_STORE")
            target = Path(os.path.abspath(folder.parent / os.readlink(folder)))
            _refuse_foreign_path(target / path.relative_to(folder), links - 1)
            return
        if _others_may_replace(status):
            raise Untrusted(
                f"node store {path}: others may write to {folder}, and so replace what is in it",
                f"chmod go-w {folder}, or set CACHESVC_STORE",
            )


def _is_of_host(folder: Path, status: os.stat_result) -> bool:
    """Return whether a folder belongs to a user who has no number in this user namespace, and this process
    may not rename what others put there.

    Linux shows such an owner as the *overflow* user, 65534: user_namespaces(7). Where that number has a user
    of its own, as on a host, it is this user.
    """
    try:
        unknown = int(Path("/proc/sys/kernel/overflowuid").read_text())
        known = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        is_mapped = any(int(first) <= unknown < int(first) + int(count) for first, _, count in known)
    except (OSError, ValueError):  # no Linux
        return False
    is_shut = bool(status.st_mode & stat.S_ISVTX) or not os.access(folder, os.W_OK, effective_ids=True)
    return status.st_uid == unknown and not is_mapped and is_shut


def _others_may_replace(status: os.stat_result) -> bool:
    """Returns whether other users may rename what lies in the folder of this status.

    A group without other members than this user is no other user.
    """
    mode = status.st_mode
    if mode & stat.S_ISVTX or not mode & 0o022:
        return False
    return bool(mode & 0o002) or not _is_own_group(status.st_gid)


def _is_volume(folder: Path) -> bool:
    """Returns whether a folder is a volume of this container, which has its processes to itself.

    A volume has the owner and the mode that it has on the host: `emptyDir` is open to all and never sticky,
    and a bind mount belongs to a user of the host.
    """
    return os.path.ismount(folder) and (
        bool(os.environ.get("KUBERNETES_SERVICE_HOST")) or any(map(os.path.exists, _CONTAINER_FILES))
    )


def _is_own_group(group: int) -> bool:
    """Returns whether a group is the one that has this user's name and no other member."""
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}


def remove_entry(path: Path) -> None:
    """Removes a file, a link or a whole folder; does nothing about what cannot be removed."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
