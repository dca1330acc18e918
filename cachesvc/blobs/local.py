"""Store blobs in a folder: as ``tmp/<random>`` until they are whole and synced, then as ``objects/<key>``."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cachesvc_client.atomic import sync_folder
from cachesvc_client.wire.errors import CacheSvcError, StorageFull, Unavailable

from .store import CHUNK_BYTES, BlobFacts, Disk, checked_key, clipped, missing


def open_url(url: str, *, sweep: bool = False) -> LocalBlobStore:
    """Return the store of ``file:///FOLDER``. ``sweep``: as `LocalBlobStore.sweep`, for a start."""
    store = LocalBlobStore(Path(unquote(urlsplit(url).path)))
    if sweep:
        store.sweep()
    return store


class LocalBlobStore:
    """A :class:`~cachesvc.blobs.store.BlobStore` over one folder of one machine.

    Makes the folder if it is absent. ``put`` returns after the bytes and the name are on disk.
    """

    def __init__(self, root: Path) -> None:
        self._objects = root / "objects"
        self._tmp = root / "tmp"
        with _own_errors(root):
            self._objects.mkdir(parents=True, exist_ok=True)
            self._tmp.mkdir(exist_ok=True)

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        final, temp = self._path(key), self._tmp / secrets.token_hex(16)
        with _own_errors(final):
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            for chunk in chunks:
                with _own_errors(final):
                    _write_all(fd, chunk)
            with _own_errors(final):
                os.fsync(fd)
                size = os.fstat(fd).st_size
                self._publish(temp, final)
        finally:
            os.close(fd)
            temp.unlink(missing_ok=True)
        return size

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        path = self._path(key)
        with _own_errors(path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise missing(key) from None
        try:
            left = clipped(key, os.fstat(fd).st_size, start, length)
        except BaseException:
            os.close(fd)
            raise
        return _Reader(fd, start, left)

    def size(self, key: str) -> int:
        path = self._path(key)
        with _own_errors(path):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                raise missing(key) from None

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _own_errors(path):
            path.unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        for folder, _, names in os.walk(self._objects):
            for name in names:
                path = Path(folder, name)
                key = path.relative_to(self._objects).as_posix()
                if key.startswith(prefix):
                    try:
                        yield BlobFacts(key, path.stat().st_size)
                    except FileNotFoundError:
                        continue

    def check(self) -> None:
        probe = self._tmp / f"check-{secrets.token_hex(8)}"
        with _own_errors(self._tmp):
            try:
                probe.write_bytes(b"x")
            finally:
                probe.unlink(missing_ok=True)

    def disk(self) -> Disk:
        """Returns the space of the folder's file system."""
        with _own_errors(self._objects):
            found = os.statvfs(self._objects)
        return Disk(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def sweep(self) -> int:
        """Removes what killed puts left in ``tmp/`` and returns how many files; for a start, before any
        put."""
        with _own_errors(self._tmp):
            left = list(self._tmp.iterdir())
            for path in left:
                path.unlink(missing_ok=True)
        return len(left)

    def _path(self, key: str) -> Path:
        return self._objects / checked_key(key)

    def _publish(self, temp: Path, final: Path) -> None:
        final.parent.mkdir(parents=True, exist_ok=True)
        os.link(temp, final)
        for folder in (final.parent, *final.parent.parents):
            sync_folder(folder)
            if folder == self._objects:
                return


class _Reader(Iterator[bytes]):
    """Reads from a file descriptor, and closes it at the end, on an error, in ``close`` and when it is
    deleted."""

    def __init__(self, fd: int, offset: int, left: int) -> None:
        self._fd, self._offset, self._left = fd, offset, left

    def __next__(self) -> bytes:
        if not self._left:
            self.close()
            raise StopIteration
        try:
            chunk = os.pread(self._fd, min(CHUNK_BYTES, self._left), self._offset)
        except OSError as error:
            self.close()
            raise Unavailable(f"reading an object failed: {error.strerror}") from None
        if not chunk:
            self.close()
            raise Unavailable("an object is shorter than it was")
        self._offset += len(chunk)
        self._left -= len(chunk)
        return chunk

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._left = 0

    def __del__(self) -> None:
        self.close()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def _own_errors(path: Path) -> Iterator[None]:
    """Turns the system's errors into ``StorageFull`` and ``Unavailable`` that name the path."""
    try:
        yield
    except CacheSvcError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFull(f"{path}: {error.strerror}", "make room on the registry's disk") from None
        raise Unavailable(f"{path}: {error.strerror or error}") from None
