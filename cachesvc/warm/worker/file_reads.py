"""Watch which files under a folder are read, by this process, by C++ code and by child processes."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger("cachesvc")

_IN_ACCESS, _IN_MOVED_TO, _IN_CREATE, _IN_ISDIR = 0x1, 0x80, 0x100, 0x40000000
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
"""``struct inotify_event``: watch descriptor, mask, cookie, length of the name. See inotify(7)."""
_BUFFER_BYTES = 1 << 16
_POLL_SECONDS = 0.05
"""Seconds between two looks at whether the watch is over."""
_SELF_TEST_SECONDS = 2.0
"""Seconds that the event of the self-test may take."""


class ReadWatch:
    """Watches which files under ``root`` are read, by any process.

    The watch uses inotify's IN_ACCESS (IN_OPEN would also report lock files), with a self-test. Where inotify
    does not work (a limit, a file system without events), or where its queue overflowed, the watch compares
    access times, which it set back at the start. Neither way sees a file on which only stat() is called.

    >>> with ReadWatch(root) as watch: ...       # doctest: +SKIP
    >>> watch.read()                             # relative paths
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.method = "inotify"
        self._seen: set[str] = set()
        self._folders: dict[int, str] = {}
        self._fd = -1
        self._stop = threading.Event()
        self._overflow = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ReadWatch:
        self._set_times_back()
        try:
            self._begin()
            self._self_test()
        except OSError as error:
            _log.debug("inotify is not usable here (%s): access times instead", error)
            self.method = "atime"
            self._end()
        self._seen.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        if self._overflow:
            self.method = "atime"

    def read(self) -> set[str]:
        """Return the relative paths of the regular files that were read while the watch was open."""
        if self.method == "atime":
            return {path for path, entry in self._files() if entry.stat().st_atime > 1.0}
        return {path for path in self._seen if (self.root / path).is_file()}

    def _files(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        waiting = [self.root]
        while waiting:
            for entry in os.scandir(waiting.pop()):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    yield os.path.relpath(entry.path, self.root), entry

    def _set_times_back(self) -> None:
        for _, entry in self._files():
            status = entry.stat()
            os.utime(entry.path, (0.0, max(status.st_mtime, 1.0)))

    def _begin(self) -> None:
        """Start inotify and the thread that takes its events. Raises ``OSError``."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._add_watch = libc.inotify_add_watch
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._watch(str(self.root))
        self._thread = threading.Thread(target=self._run, name="cachesvc-reads", daemon=True)
        self._thread.start()

    def _watch(self, folder: str) -> None:
        """Watch ``folder`` and the folders below it. Raises ``OSError``."""
        mask = _IN_ACCESS | _IN_CREATE | _IN_MOVED_TO
        descriptor = self._add_watch(self._fd, os.fsencode(folder), mask)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")
        self._folders[descriptor] = folder
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                self._watch(entry.path)

    def _self_test(self) -> None:
        """Read a file and wait for its event. Raises ``OSError`` if none comes."""
        with tempfile.NamedTemporaryFile(dir=self.root, prefix=".cachesvc-") as probe:
            probe.write(b"x")
            probe.flush()
            Path(probe.name).read_bytes()
            name, end = os.path.basename(probe.name), time.monotonic() + _SELF_TEST_SECONDS
            while name not in self._seen:
                if time.monotonic() > end:
                    raise OSError("no event for a file that was read")
                time.sleep(0.005)

    def _run(self) -> None:
        while not self._stop.is_set():
            ready, _, _ = select.select([self._fd], [], [], _POLL_SECONDS)
            if ready:
                self._take(os.read(self._fd, _BUFFER_BYTES))
        try:
            while chunk := os.read(self._fd, _BUFFER_BYTES):
                self._take(chunk)
        except BlockingIOError:
            pass

    def _take(self, chunk: bytes) -> None:
        """Take the events of one read from the kernel's queue."""
        offset = 0
        while offset < len(chunk):
            descriptor, mask, _, length = _EVENT.unpack_from(chunk, offset)
            name = os.fsdecode(chunk[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0"))
            offset += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW:
                self._overflow = True
                continue
            path = os.path.join(self._folders.get(descriptor, str(self.root)), name)
            if mask & _IN_ISDIR:
                if mask & (_IN_CREATE | _IN_MOVED_TO):
                    self._watch_new(path)
            elif mask & _IN_ACCESS:
                self._seen.add(os.path.relpath(path, self.root))

    def _watch_new(self, folder: str) -> None:
        try:
            self._watch(folder)
        except OSError:
            self._overflow = True

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
