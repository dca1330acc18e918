"""Owns the private cache folders of a node: each is new to the first process that opens it, and stays while a
process uses it.

Nothing is emptied. A lock can end before its process does, and a process without cachesvc may have inherited
a variable that names a folder: so the next start gets another folder, and the old one is removed once no one
is seen to use it (`PrivateFolders.sweep`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from ...wire.digest import Digest
from .. import folder_users
from ..path_owners import refuse_foreign
from ..store_files import StoreFiles, remove_entry

SWEEP_SECONDS = 5.0
"""Seconds in which a sweep looks at the processes of this host, at most."""
SETTLED_SECONDS = 300.0
"""Seconds without a change, from which a folder that no one is seen to use is removed. A process that names
it may hide that, or run on another host; a compile that it has under way is shorter."""
_NAME_DIGITS = 48
"""Digits of the name that a folder's begins with; the others make it new."""
_GONE = ".gone"
"""End of the name of a folder that is being removed."""


class PrivateFolders:
    """Opens private folders, and removes those that no one uses. A process leaves a mark of each that it
    uses, see `folder_users`."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._opened: dict[Digest, Path] = {}

    def open(self, name: Digest) -> Path:
        """Open a private cache folder of this name: 0700, ours, and kept while this process lives.

        It is the folder of a process that lives and has opened the same name, else a new one. So files that
        were put there while no process used it are never seen by a compiler. Raise ``Untrusted`` if another
        user could write there.
        """
        with self._files.raise_storage_full(), self._lock(name.hex):
            path = self._opened.get(name)
            if path is None or not os.path.lexists(path):
                path = self._in_use(name)
                path = self._make(name) if path is None else self._join(path)
                self._opened[name] = path
            refuse_foreign(path)
        return path

    def open_own(self, purpose: str) -> Path:
        """Open a new private folder that no other process gets. Raise as `open` does."""
        with self._files.raise_storage_full():
            name = Digest.of(f"{purpose} {secrets.token_hex(8)}".encode())
            with self._lock(name.hex):
                return self._make(name)

    def leave(self, path: Path) -> None:
        """End this process's use of a folder, in which it neither read nor wrote anything."""
        self._opened = {name: opened for name, opened in self._opened.items() if opened != path}
        folder_users.leave(self._files, path.name)

    def sweep(self, settled: float = SETTLED_SECONDS) -> None:
        """Remove the folders that no process is seen to use, and in which nothing changed for ``settled``
        seconds. To be called where no one waits. Raise ``OSError``."""
        from ..folder_readers import folders_in_sight  # a start makes folders, and sweeps none

        marks = folder_users.marks_by_folder(self._files)
        names = {path.name for path, _ in self._files.entries("folders")} | marks.keys()
        ended = [name for name in names if not folder_users.may_live(marks.get(name, []))]
        ended = [name for name in ended if self._age(name) >= settled]
        known = folders_in_sight(time.monotonic() + SWEEP_SECONDS) if ended else set()
        for name in ended:
            if known is None and self._age(name) < folder_users.UNSEEN_SECONDS:
                continue
            if name not in (known or ()):
                with contextlib.suppress(OSError):  # somebody opens a folder of this name now
                    self._remove(name)

    def _remove(self, name: str) -> None:
        path = self._files.path("folders", name)
        gone = path if name.endswith(_GONE) else path.with_name(name + _GONE)
        with self._lock(name, wait=False):
            marks = folder_users.marks_by_folder(self._files).get(name, [])
            if folder_users.may_live(marks):
                return
            # Moved in one step: the next sweep goes on where a process was killed.
            if gone != path and os.path.lexists(path):
                os.rename(path, gone)
            folder_users.remove_ended(marks)
            self._files.step("moved aside")
        remove_entry(gone)

    def _in_use(self, name: Digest) -> Path | None:
        """Return the folder of this name that a live process has opened; ``None`` if there is none."""
        for folder, marks in folder_users.marks_by_folder(self._files).items():
            path = self._files.path("folders", folder)
            is_named = folder[:_NAME_DIGITS] == name.hex[:_NAME_DIGITS]
            if is_named and os.path.lexists(path) and folder_users.lives(marks):
                return path
        return None

    def _make(self, name: Digest) -> Path:
        path = self._files.path("folders", name.hex[:_NAME_DIGITS] + secrets.token_hex(8))
        folder_users.add_mark(self._files, path.name)
        path.mkdir(mode=0o700)
        refuse_foreign(path)
        return path

    def _join(self, path: Path) -> Path:
        refuse_foreign(path)
        folder_users.add_mark(self._files, path.name)
        return path

    def _lock(self, name: str, wait: bool = True) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the folders whose names begin alike."""
        return self._files.lock(f"folder-{name[:_NAME_DIGITS]}", wait=wait)

    def _age(self, name: str) -> float:
        """Return how many seconds ago something was made in a folder, or removed from it."""
        newest = 0.0
        for folder, _, _ in os.walk(self._files.path("folders", name)):
            with contextlib.suppress(FileNotFoundError):
                newest = max(newest, os.lstat(folder).st_mtime)
        return time.time() - newest
