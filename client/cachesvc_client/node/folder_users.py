"""Owns the marks of the processes that use private folders, one file for each process and folder.

A mark is locked (flock) as long as its process, or one that was forked from it, lives. A mapping of the file
has the lock, and no descriptor: a program that closes all of its descriptors, as a daemon does, keeps it.
Where the file system lets go of such a lock (overlayfs), a descriptor has it, and the mark says which
process made it, so that others see whether that one lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import mmap
import os
import secrets
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .processes import boot_id, pid_namespace, stat_fields
from .store_files import StoreFiles, is_same_file, open_plain_file

PART = "users"
"""Name of the part of a store that has the marks. Each is named ``<folder>.<number>``."""
UNSEEN_SECONDS = 7 * 24 * 3600
"""Age in seconds at which a mark ends whose process cannot be seen: that of another host, or another boot."""
_MAX_BYTES = 200
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

Life = Literal["lives", "ended", "unknown"]
"""What is seen of the process of a mark."""


class _Mark(NamedTuple):
    """A mark of this process. A mapping at ``address`` has its lock, or the descriptor ``handle``."""

    files: StoreFiles
    folder: str
    path: Path
    address: int | None
    handle: int | None


_MARKS: list[_Mark] = []
"""The marks of this process, in whatever store."""


def add_mark(files: StoreFiles, folder: str) -> None:
    """Mark this process as a user of the folder of this name. Raise ``OSError``."""
    path = files.path(PART, f"{folder}.{secrets.token_hex(8)}")
    handle = os.open(path, _NEW_FILE, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        address = _map(handle)
        # Opened again: whether the mapping holds the lock shows once the first descriptor is closed.
        first, handle = handle, os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        os.close(first)
        is_mapped = _is_locked(handle)
        if not is_mapped:
            fcntl.flock(handle, fcntl.LOCK_EX)
        words = (_kernel(), _namespace(), os.getpid(), _start(os.getpid()), "mapped" if is_mapped else "open")
        os.write(handle, " ".join(map(str, words)).encode())
    except OSError:
        os.close(handle)
        path.unlink(missing_ok=True)
        raise
    if is_mapped:
        os.close(handle)
    _MARKS.append(_Mark(files, folder, path, address, None if is_mapped else handle))


def leave(files: StoreFiles, folder: str) -> None:
    """End this process's use of a folder. A forked child that has the mark too keeps it."""
    for mark in [mark for mark in _MARKS if (mark.files, mark.folder) == (files, folder)]:
        _MARKS.remove(mark)
        if mark.address is not None:
            _libc().munmap(mark.address, 1)
        # A program may have closed all files of the process, and the number may be another file's by now.
        if mark.handle is not None and is_same_file(mark.handle, mark.path):
            os.close(mark.handle)
        with contextlib.suppress(OSError):
            handle = open_plain_file(mark.path, os.O_RDONLY)
            if not _is_locked(handle):
                mark.path.unlink()
            os.close(handle)


def marks_by_folder(files: StoreFiles) -> dict[str, list[Path]]:
    """Return the marks that lie in a store, by the name of their folder. Raise ``OSError``."""
    found: dict[str, list[Path]] = {}
    for path, _ in files.entries(PART):
        found.setdefault(path.name.partition(".")[0], []).append(path)
    return found


def lives(marks: list[Path]) -> bool:
    """Return whether the process of one of these marks is seen alive."""
    return any(_life(mark) == "lives" for mark in marks)


def may_live(marks: list[Path]) -> bool:
    """Return whether the process of one of these marks is not seen to have ended."""
    return any(_life(mark) != "ended" for mark in marks)


def remove_ended(marks: list[Path]) -> None:
    """Remove the marks whose process has ended."""
    for mark in marks:
        if _life(mark) == "ended":
            with contextlib.suppress(OSError):
                mark.unlink()


def _life(mark: Path) -> Life:
    """Return what is seen of the process of a mark. Raise nothing."""
    try:
        age = time.time() - mark.lstat().st_mtime
        handle = open_plain_file(mark, os.O_RDONLY)
    except FileNotFoundError:
        return "ended"
    except OSError:  # something else lies there
        return "ended" if age > UNSEEN_SECONDS else "unknown"
    try:
        if _is_locked(handle):
            return "lives"
        words = os.read(handle, _MAX_BYTES).decode("ascii", "replace").split()
    except OSError:
        words = []
    finally:
        os.close(handle)
    if len(words) == 5 and words[0] == _kernel() != "-":
        if words[4] == "mapped":
            return "ended"  # its lock was the process's own, to the end
        if words[1] == _namespace() != "-":
            return "lives" if _is_process(words[2], words[3]) else "ended"
    return "ended" if age > UNSEEN_SECONDS else "unknown"


def _is_locked(handle: int) -> bool:
    """Return whether another open file has the lock of this one. Raise ``OSError``."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def _is_process(pid: str, start: str) -> bool:
    """Return whether a process lives that has this number and began then."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    except OSError:  # another user's
        pass
    return _start(int(pid)) in (start, "-")


def _start(pid: int) -> str:
    """Return when a process began, in ticks since the boot; ``-`` if that is not to be read."""
    fields = stat_fields(pid)
    return fields[19] if len(fields) > 19 else "-"


@functools.cache
def _kernel() -> str:
    """Return what names this host and its boot; ``-`` if the system does not say."""
    return boot_id() or "-"


def _namespace() -> str:
    """Return what names the set of processes that this one sees; ``-`` if the system does not say."""
    return pid_namespace() or "-"


def _map(handle: int) -> int | None:
    """Map a file, for as long as this process lives; return the address. Not by Python's object, which has a
    descriptor of its own and closes it, though the number may be another file's by then."""
    try:
        address = _libc().mmap(None, 1, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    except (ImportError, OSError, AttributeError):
        return None
    return None if address in (None, 2**64 - 1, 2**32 - 1) else int(address)


@functools.cache
def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _mark_child() -> None:
    """Mark a forked child, where its parent's lock ends with a descriptor, which the child may close."""
    inherited = [mark for mark in _MARKS if mark.handle is not None]
    for mark in inherited:
        _MARKS.remove(mark)
        with contextlib.suppress(OSError):
            remove_ended(marks_by_folder(mark.files).get(mark.folder, []))
            add_mark(mark.files, mark.folder)


os.register_at_fork(after_in_child=_mark_child)
