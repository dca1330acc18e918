"""Owns the mark of this process in the node store: what it loads as code now.

A process that dies of what it loads can say nothing any more. Its mark stays, and nobody holds the lock of
the mark: so the next process knows what not to load.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..wire.digest import Digest
from .store_files import StoreFiles, is_same_file

PART = "loading"
"""Name of the part of a store that has the marks."""
_MAX_BYTES = 20_000
"""Bytes that are read of a mark: about 120 revisions."""


class LoadMark:
    """Marks what this process loads. Made with the first load; one write marks a load, and one its end."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._follows_process = False
        """Whether fork and exit of the process call this object."""
        self._forget()

    def _forget(self) -> None:
        """Forgets the mark of the parent, in a forked child, which makes its own."""
        self._lock = threading.Lock()
        self._begun = False
        self._place: tuple[int, Path] | None = None
        """Handle and path of the mark; ``None`` if there is none, or no room for it."""
        self._under_way: dict[object, bytes] = {}
        """What is loaded now: the lines of each load."""

    @contextmanager
    def loading(self, revisions: Iterable[tuple[Digest, Digest]]) -> Iterator[None]:
        """Marks these revisions, each given with its entry, for the length of the block, and no longer where
        an exception ends it. Raises nothing: without room for a mark, nothing is marked."""
        load, text = object(), "".join(f"{entry} {revision}\n" for entry, revision in revisions)
        with self._lock:
            self._begin()
            self._under_way[load] = text.encode()
            self._write()
        try:
            yield
        finally:
            with self._lock:
                if self._under_way.pop(load, None) is not None:
                    self._write()

    def _begin(self) -> None:
        if not self._follows_process:
            self._follows_process = True
            os.register_at_fork(after_in_child=self._forget)
            atexit.register(self._end)
        if not self._begun:
            self._begun = True
            with contextlib.suppress(OSError):
                self._place = self._files.hold_new(PART)

    def _write(self) -> None:
        # A program may have closed all files of the process, and the number may be another file's by now.
        if self._place is not None and is_same_file(*self._place):
            with contextlib.suppress(OSError):
                os.ftruncate(self._place[0], 0)
                os.pwrite(self._place[0], b"".join(self._under_way.values()), 0)

    def _end(self) -> None:
        """Removes the mark at the end of the process, which threads that still load do not survive."""
        with self._lock:
            self._under_way = {}
            self._write()
            place, self._place = self._place, None
        if place is not None:
            with contextlib.suppress(OSError):
                place[1].unlink(missing_ok=True)


def settle_left_behind(files: StoreFiles, withdraw: Callable[[Digest, Digest], None]) -> None:
    """Withdraws each entry's revision that processes were loading when they died, and then removes their
    marks. Raises ``OSError``. The caller holds a lock."""
    for path, said in files.left_behind(PART, _MAX_BYTES):
        for line in said.decode("ascii", "replace").splitlines():
            with contextlib.suppress(ValueError):
                entry, revision = map(Digest, line.split())
                withdraw(entry, revision)
        path.unlink(missing_ok=True)
