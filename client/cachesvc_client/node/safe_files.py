"""Owns the file operations that capture and install stand on: folders that are opened without following a
link, files that are whole or absent, and the private folder for temporary files.

A cache folder sees whole files only: each file is written in ``<root>/.cachesvc`` (on the same file system)
and linked or renamed to its place. Compilers write there at the same time, other processes install at
the same time, and any of them may be killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..wire.digest import Digest
from ..wire.errors import Untrusted

PRIVATE = ".cachesvc"
"""Name of the folder below each root that holds temporary files and the lock for merges. No kind's rule
matches it."""
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a folder and refuse a link."""
_MAX_OPEN_FOLDERS = 64
"""Number of folder handles that one `OpenFolders` keeps open."""
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
"""Flags that make a new file and refuse an existing one."""
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags that open a file to read it, refuse a link, and do not block on a named pipe."""
_LINK_UNSUPPORTED = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
"""Errors of ``link`` that say the file system has no hard links; a rename serves then."""

Step = Callable[[str], None]
"""Receives the name of each step that was done, for tests that kill the process at a step."""


class Temporary(NamedTuple):
    """Names a whole file of ``size`` bytes in a private folder (a handle), not yet in its place."""

    folder: int
    name: str
    size: int


class OpenFolders:
    """Holds handles of the 64 folders that were opened last. Follows no link below a root."""

    def __init__(self, create: bool) -> None:
        self._create = create
        self._handles: OrderedDict[tuple[Path, str], int] = OrderedDict()

    def close(self) -> None:
        """Closes every handle."""
        while self._handles:
            os.close(self._handles.popitem()[1])

    def open(self, root: Path, folder: str) -> int:
        """Opens a folder below the root. The handle is good until 64 others were opened. Raises ``OSError``,
        and ``Untrusted`` for a link."""
        key = (root, folder)
        handle = self._handles.get(key)
        if handle is None:
            handle = self._handles[key] = self._walk(root, folder)
            if len(self._handles) > _MAX_OPEN_FOLDERS:
                os.close(self._handles.popitem(last=False)[1])
        else:
            self._handles.move_to_end(key)
        return handle

    def _walk(self, root: Path, folder: str) -> int:
        if not folder:
            return os.open(root, FOLDER_FLAGS & ~os.O_NOFOLLOW)
        above, _, part = folder.rpartition("/")
        parent = self.open(root, above)
        try:
            return self._enter(parent, part)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Untrusted(f"{root / folder}: {part} is a link, or no folder", "remove it") from None
            raise

    def _enter(self, parent: int, part: str) -> int:
        try:
            return os.open(part, FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if not self._create:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=parent)
        return os.open(part, FOLDER_FLAGS, dir_fd=parent)


def write_new_file(
    folder: int, name: str, mode: int, chunks: Iterable[bytes | memoryview], step: Step = lambda _name: None
) -> int:
    """Makes a new file of these chunks and returns its size. Raises ``OSError``, and what ``chunks`` raises;
    the file is not whole then."""
    handle = os.open(name, _NEW_FILE_FLAGS, mode, dir_fd=folder)
    size = 0
    try:
        step("created")
        for chunk in chunks:
            size += len(chunk)
            written = os.write(handle, chunk)
            while written < len(chunk):
                written += os.write(handle, chunk[written:])
    finally:
        os.close(handle)
    step("filled")
    return size


def place_if_absent(temporary: Temporary, folder: int, name: str) -> bool:
    """Gives the whole file its name; returns false if a file has that name already. ``link`` never
    replaces a file."""
    try:
        os.link(temporary.name, name, src_dir_fd=temporary.folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _LINK_UNSUPPORTED:
            raise
        if _exists(name, folder):
            return False
        replace_file(temporary, folder, name)
    return True


def replace_file(temporary: Temporary, folder: int, name: str) -> None:
    """Gives the whole file its name, in place of a file that has it."""
    os.rename(temporary.name, name, src_dir_fd=temporary.folder, dst_dir_fd=folder)


def unlink_if_present(folder: int, name: str) -> None:
    """Removes a file; does nothing where there is none."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def has_content(name: str, folder: int, size: int, digest: Digest) -> bool:
    """Returns whether a regular file of this name has this content. A link never has it."""
    try:
        handle = os.open(name, _READ_FLAGS, dir_fd=folder)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        return Digest.of_chunks(iter(lambda: file.read(1 << 20), b"")) == digest


def read_file(name: str, folder: int) -> bytes | None:
    """Reads a file; returns ``None`` where there is none. Raises ``OSError`` for a link or a folder in its
    place."""
    try:
        handle = os.open(name, _READ_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return _content(handle, status)
    finally:
        os.close(handle)


def read_unchanged_file(folder: int, name: str) -> tuple[bytes, os.stat_result] | None:
    """Reads content and status of a file; returns ``None`` if the file changed meanwhile. The content is
    empty if it is not a regular file. Raises ``OSError``."""
    handle = os.open(name, _READ_FLAGS, dir_fd=folder)
    try:
        before = os.fstat(handle)
        data = _content(handle, before)
        after = os.fstat(handle)
    finally:
        os.close(handle)
    same = before.st_mtime_ns == after.st_mtime_ns and before.st_size == after.st_size
    if same and (len(data) == before.st_size or not stat.S_ISREG(before.st_mode)):
        return data, before
    return None


@contextmanager
def merge_lock(private: int) -> Iterator[None]:
    """Holds the lock for merges below one root; ``private`` is the handle of its private folder."""
    handle = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=private)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _content(handle: int, status: os.stat_result) -> bytes:
    if not stat.S_ISREG(status.st_mode):
        return b""
    with os.fdopen(handle, "rb", closefd=False) as file:
        return file.read()
