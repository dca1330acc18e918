"""Keeps the packs of a node: each is downloaded once, and those that were used longest ago go first."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from ...wire.digest import Digest
from ...wire.errors import Corrupt, StorageFull, TooLarge, Unavailable
from ...wire.sizes import parse_size
from ..store_files import FULL_ERRORS, StoreFiles, open_plain_file

DEFAULT_MAX_BYTES = 20 << 30
"""Bytes of packs that a node keeps, where ``CACHESVC_STORE_BYTES`` says nothing else."""
JUST_USED_SECONDS = 60
"""Seconds within which a reader opens a pack that was handed out; after that the reader has a lock."""
STALLED_SECONDS = 15.0
"""Seconds without a byte, after which a process waits for another one's download no longer. A transfer fails
when no byte moved for 10 seconds (`http.registry`), so its process is stopped or hangs then."""
_LEFTOVER_SECONDS = 24 * 3600
"""Age in seconds from which temporary files, locks and folders of jobs are removed."""
UNUSED_SECONDS = 30 * 24 * 3600
"""Seconds without use after which own results are removed, and what a program keeps for its next start."""
Download = Callable[[int], Iterator[bytes]]
"""Returns the bytes of a pack from an offset on."""


class Watcher(Protocol):
    """Follows the download of a pack."""

    def receive(self, path: Path, size: int) -> None:
        """Follows the download: the first ``size`` bytes are in ``path`` now, unchecked. Must not raise."""

    def is_whole(self) -> bool:
        """Returns whether every byte of the pack was read and had the digest that was signed, frame by
        frame."""


def max_store_bytes() -> int:
    """Returns the bytes of packs that a node keeps: ``CACHESVC_STORE_BYTES``, or the default. A malformed
    value, which `config` refuses, counts as not set."""
    with contextlib.suppress(ValueError):
        return parse_size(os.environ.get("CACHESVC_STORE_BYTES", ""))
    return DEFAULT_MAX_BYTES


class PackStore:
    """Keeps the packs, as long as they are no more than ``max_bytes``."""

    def __init__(
        self,
        root: Path,
        max_bytes: int | None = None,
        step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """Raises ``StorageFull`` if the root cannot be written, ``Untrusted`` if it is another user's, or if
        another user could replace it."""
        self.root = root
        self.max_bytes = max_store_bytes() if max_bytes is None else max_bytes
        self._step = step
        self._files = StoreFiles(root, step)

    def pack(self, digest: Digest, size: int | None = None) -> Path | None:
        """Returns the path of a pack, marked as just used; ``None`` if it is not here, or not of ``size``
        bytes."""
        path = self._files.path("packs", digest.hex)
        try:
            if size is not None and path.stat().st_size != size:
                return None
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:  # a store that has become read-only still serves
            return path if path.exists() else None
        return path

    def fetch(
        self,
        digest: Digest,
        size: int,
        download: Download,
        watcher: Watcher | None = None,
    ) -> tuple[Path, int]:
        """Returns the path of a pack, and how many bytes were moved to download it if it was not here; the
        ``watcher`` follows the download.

        One process of the node downloads a pack; others wait for it, as long as it brings bytes. Once it has
        brought none for ``STALLED_SECONDS`` (a container that is paused has its locks), a process downloads
        the pack by itself. A partial download is resumed.

        Guarantees that the bytes had ``size`` and ``digest`` (or, if the watcher says so, the frames that
        were signed with it). Raises ``Corrupt`` (nothing is kept), ``TooLarge``, ``StorageFull``,
        ``Unavailable`` if the download ends early, and what ``download`` raises; after the last two the next
        call resumes.
        """
        if size > self.max_bytes:
            raise TooLarge(
                f"pack {digest}: {size} bytes; the node store holds {self.max_bytes}", "raise its bound"
            )
        partial = self._files.path("partial", digest.hex)
        with self._files.raise_storage_full():
            with contextlib.suppress(_Stalled), self._lock_download(digest, partial):
                self._step("locked")
                if existing := self.pack(digest, size):
                    return existing, 0
                path, moved = self._download(partial, digest, size, download, watcher)
                self.evict(keep=digest)
                return path, moved
            own = self._files.temporary()
            try:
                path, moved = self._download(own, digest, size, download, watcher)
            finally:
                own.unlink(missing_ok=True)
        self.evict(keep=digest)
        return path, moved

    @contextlib.contextmanager
    def _lock_download(self, digest: Digest, partial: Path) -> Iterator[None]:
        """Holds the lock of one pack's download. Raises ``_Stalled`` if its holder brings no bytes."""
        try:
            with self._files.lock(digest.hex, give_up=_Stall(partial).is_over):
                yield
        except BlockingIOError:
            raise _Stalled from None

    def discard(self, digest: Digest) -> None:
        """Forgets a pack that turned out to be damaged (``Corrupt`` from a reader or an install); the next
        fetch downloads it again."""
        with self._files.raise_storage_full():
            self._files.path("packs", digest.hex).unlink(missing_ok=True)

    def evict(self, keep: Digest | None = None) -> None:
        """Removes the packs that were used longest ago until the rest fits, own results that were not used
        for 30 days, and leftovers that are a day old. Keeps ``keep`` and what is in use. Never raises."""
        with contextlib.suppress(OSError, StorageFull), self._files.lock("evict", wait=False):
            for part in ("partial", "tmp", "locks", "jobs"):
                self._files.sweep(part, _LEFTOVER_SECONDS)
            self._evict_packs(keep)
            self._files.sweep("own", UNUSED_SECONDS)

    def _download(
        self, partial: Path, digest: Digest, size: int, download: Download, watcher: Watcher | None
    ) -> tuple[Path, int]:
        try:
            moved, intact = self._receive(partial, digest, size, download, watcher)
            if not intact and moved < size:
                # A killed process left something else than the pack's beginning: start again.
                partial.unlink()
                again, intact = self._receive(partial, digest, size, download, None)
                moved += again
        except OSError as error:
            if error.errno in FULL_ERRORS:  # on a full disk half a pack only takes room
                partial.unlink(missing_ok=True)
            raise
        if not intact:
            partial.unlink()
            raise Corrupt(f"pack {digest}: what was downloaded is not this pack ({moved} bytes moved)")
        path = self._files.path("packs", digest.hex)
        os.replace(partial, path)
        self._step("renamed")
        return path, moved

    def _receive(
        self, partial: Path, digest: Digest, size: int, download: Download, watcher: Watcher | None
    ) -> tuple[int, bool]:
        """Downloads from where the partial file ends; returns the bytes moved and whether the whole is the
        pack."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with os.fdopen(open_plain_file(partial, flags), "ab+", buffering=0) as file:
            self._step("opened")
            size_before = os.fstat(file.fileno()).st_size
            if size_before > size:
                file.truncate(0)
                size_before = 0
            moved = 0
            for chunk in _download_bytes(download, size_before) if size_before < size else ():
                moved += len(chunk)
                if size_before + moved > size:
                    return moved, False
                _write_all(file.fileno(), chunk)
                self._step("chunk")
                if watcher is not None:
                    watcher.receive(partial, size_before + moved)
            if size_before + moved < size:
                raise Unavailable(
                    f"pack {digest}: the download ended at {size_before + moved} of {size} bytes"
                )
            self._step("downloaded")
            if watcher is not None and watcher.is_whole():
                return moved, True
            file.seek(0)
            return moved, Digest.of_chunks(iter(lambda: file.read(1 << 20), b"")) == digest

    def _evict_packs(self, keep: Digest | None) -> None:
        packs = sorted(
            (status.st_mtime, status.st_size, path) for path, status in self._files.entries("packs")
        )
        excess = sum(size for _, size, _ in packs) - self.max_bytes
        for last_use, size, path in packs:
            if excess <= 0 or last_use > time.time() - JUST_USED_SECONDS:
                return
            if (keep is None or path.name != keep.hex) and self._files.remove_unless_used(path):
                excess -= size


class _Stalled(Exception):
    """The process that downloads a pack brings no bytes."""


class _Stall:
    """Watches the file of another process's download."""

    def __init__(self, partial: Path) -> None:
        self._partial, self._size, self._since = partial, -1, time.monotonic()

    def is_over(self) -> bool:
        """Returns whether the file has been the same for ``STALLED_SECONDS``."""
        try:
            size = self._partial.lstat().st_size
        except OSError:  # not made yet, or moved to its place a moment ago
            size = 0
        if size != self._size:
            self._size, self._since = size, time.monotonic()
        return time.monotonic() - self._since > STALLED_SECONDS


def _download_bytes(download: Download, offset: int) -> Iterator[bytes]:
    """Yields the bytes; raises an ``OSError`` of the network as ``Unavailable``, unlike one of the disk."""
    try:
        yield from download(offset)
    except OSError as error:
        raise Unavailable(f"download: {error}") from error


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
