"""Owns the probe of a folder: whether compilers, the loader and the locks of the store can work there.

PyTorch writes into the folder that it is given, calls compilers there, and maps what they made as code. A
folder of cachesvc may allow less than PyTorch's own one under TMPDIR: a home with a space, a mount without
execution, a full disk. So a folder is used only after all that is needed was done there once.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..wire.errors import Untrusted
from .path_owners import make_folders, refuse_foreign, refuse_foreign_path
from .store_files import LAYOUT, is_same_file

MIN_FREE_BYTES = 64 << 20
"""Bytes that have to be free: what one program compiles is 1 to 50 MB."""
MIN_FREE_FILES = 1000
"""Files that may still be made: one program makes a few hundred."""
MAX_CLOCK_DIFFERENCE = 60.0
"""Seconds by which the file system's clock may differ from this machine's: `node.store` removes by age."""
_SAFE = re.compile(r"/[A-Za-z0-9/._+@-]*")
"""Matches the paths that every compiler takes in a command line without quotes."""
_PAGE = mmap.PAGESIZE
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_AGE = 1000.0
"""Seconds before now, to which the probe sets the time of its file."""


class FolderProbe(NamedTuple):
    """What the probe of a folder found: ``failed`` names the step of `STEPS` that failed, and ``why`` says
    what went wrong. Both are empty for a folder that can be used."""

    folder: Path
    failed: str = ""
    why: str = ""

    @property
    def usable(self) -> bool:
        """Return whether every step passed."""
        return not self.failed

    def __str__(self) -> str:
        return f"{self.folder}: {self.failed}: {self.why}" if self.failed else f"{self.folder}: usable"

    def steps(self) -> list[tuple[str, str]]:
        """Return what each step said: ``ok``, what went wrong, or that it was not tried."""
        said, word = [], "ok"
        for step in STEPS:
            if step == self.failed:
                said.append((step, self.why))
                word = "not tried"
            else:
                said.append((step, word))
        return said


class _Unfit(Exception):
    """Says why a step of the probe failed where the system reported no error."""


def is_plain_path(folder: Path) -> bool:
    """Return whether every compiler takes this path in a command line without quotes."""
    return _SAFE.fullmatch(str(folder)) is not None


def probe_folder(folder: Path) -> FolderProbe:
    """Return whether a folder can have what compilers make, once found out for each folder and process.

    Make the folder where it is missing, and remove it again if it cannot be used. Raise nothing.
    """
    known = _KNOWN.get(folder)
    if known is None:
        known = _KNOWN[folder] = _Trial(folder).run()
    return known


def probe_again(folder: Path) -> FolderProbe:
    """Return whether a folder can hold now what compilers make. Raise nothing."""
    return _Trial(folder).run()


class _Trial:
    """Does in a new folder below ``folder`` what compilers and the store do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder / f".probe-{secrets.token_hex(8)}"
        self.file = self.place / "made"
        self.moved = self.place / "moved"
        self.handle: int | None = None
        """The file, open from the step `write` on."""
        self.missing = _missing(folder)

    def run(self) -> FolderProbe:
        """Try each step until one fails, and remove what was made."""
        try:
            for name, step in STEPS.items():
                try:
                    step(self)
                except (_Unfit, Untrusted) as error:
                    return self._failed(name, str(error))
                except (OSError, ValueError) as error:
                    return self._failed(name, getattr(error, "strerror", None) or str(error))
            return FolderProbe(self.folder)
        finally:
            self._remove()

    def _failed(self, step: str, why: str) -> FolderProbe:
        self._remove()
        for folder in self.missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return FolderProbe(self.folder, step, why)

    def _remove(self) -> None:
        if self.handle is None:
            return
        os.close(self.handle)
        self.handle = None
        for path in (self.file, self.moved):
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            self.place.rmdir()

    def path(self) -> None:
        """Refuse a path that a command line without quotes does not hold."""
        text = str(self.folder)
        if not is_plain_path(self.folder):
            wrong = next((sign for sign in text if not _SAFE.fullmatch(f"/{sign}")), text[:1])
            raise _Unfit(f"the character {wrong!a} may break a compiler's command line")

    def owner(self) -> None:
        """Refuse a folder that another user owns or could replace."""
        refuse_foreign_path(self.folder)
        with contextlib.suppress(FileNotFoundError):
            refuse_foreign(self.folder / LAYOUT)

    def room(self) -> None:
        """Refuse a file system that is nearly full. One that counts nothing passes."""
        room = os.statvfs(self.missing[-1].parent if self.missing else self.folder)
        free = room.f_bavail * room.f_frsize
        if room.f_blocks and free < MIN_FREE_BYTES:
            raise _Unfit(f"{free >> 10} KiB are free, {MIN_FREE_BYTES >> 10} are needed")
        if room.f_files and room.f_favail < MIN_FREE_FILES:
            raise _Unfit(f"{room.f_favail} files can be made, {MIN_FREE_FILES} are needed")

    def write(self) -> None:
        """Make the folder, and a file below it."""
        make_folders(self.folder)
        refuse_foreign_path(self.folder)  # again: the folders that were missing are there now
        self.place.mkdir(mode=0o700)
        try:
            self.handle = os.open(self.file, _NEW_FILE, 0o600)
        except OSError:
            self.place.rmdir()
            raise
        if os.write(self.handle, bytes(_PAGE)) != _PAGE:
            raise _Unfit("a file was not written whole")

    def load(self) -> None:
        """Map the file as the loader maps a library."""
        mode = mmap.PROT_READ | mmap.PROT_EXEC
        try:
            mmap.mmap(self._opened, _PAGE, flags=mmap.MAP_PRIVATE, prot=mode).close()
        except OSError as error:
            raise _Unfit(f"no library can be loaded there, as on a noexec mount ({error.strerror})") from None

    def rename(self) -> None:
        """Rename the file. Not over another one: ext4 would write it to the disk then, which needs 10 ms."""
        os.rename(self.file, self.moved)
        if not is_same_file(self._opened, self.moved):
            raise _Unfit("a file that was renamed is another one")

    def lock(self) -> None:
        """Lock the file and its folder, and see a second lock refused."""
        for path in (self.moved, self.place):
            _lock_twice(path)

    def clock(self) -> None:
        """Refuse times that are not this machine's, or that cannot be set."""
        difference = os.fstat(self._opened).st_mtime - time.time()
        if abs(difference) > MAX_CLOCK_DIFFERENCE:
            raise _Unfit(f"its clock is {difference:+.0f} s off this machine's")
        before = time.time() - _AGE
        os.utime(self._opened, (before, before))
        if abs(os.fstat(self._opened).st_mtime - before) > MAX_CLOCK_DIFFERENCE:
            raise _Unfit("the time of a file cannot be set")

    @property
    def _opened(self) -> int:
        assert self.handle is not None
        return self.handle


def _lock_twice(path: Path) -> None:
    """Raise ``_Unfit`` if a lock does not keep out another open file; ``OSError`` if there is no lock."""
    first, second = (os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) for _ in range(2))
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise _Unfit("a lock there keeps nobody out")
    finally:
        os.close(first)
        os.close(second)


def _missing(folder: Path) -> list[Path]:
    """Return the folder and those above it that are not there, the deepest first."""
    missing = []
    for path in (folder, *folder.parents):
        if os.path.lexists(path):
            break
        missing.append(path)
    return missing


STEPS: dict[str, Callable[[_Trial], None]] = {
    "path": _Trial.path,
    "owner": _Trial.owner,
    "room": _Trial.room,
    "write": _Trial.write,
    "load": _Trial.load,
    "rename": _Trial.rename,
    "lock": _Trial.lock,
    "clock": _Trial.clock,
}
"""The steps by name, in order: what leaves nothing behind comes first."""

_KNOWN: dict[Path, FolderProbe] = {}
"""What was found out in this process."""
