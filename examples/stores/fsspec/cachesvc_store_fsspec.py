"""A blob store over a file system of fsspec: ``fsspec+PROTOCOL://HOST/FOLDER``."""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import fsspec

from cachesvc.blobs.store import CHUNK_BYTES, BlobFacts, checked_key, clipped, missing
from cachesvc_client.wire.errors import CacheSvcError, StorageFull, Unavailable


def open_url(url: str) -> FsspecBlobStore:
    """Return the store of a URL."""
    return FsspecBlobStore(url.removeprefix("fsspec+"))


class FsspecBlobStore:
    """A `cachesvc.blobs.store.BlobStore` below one folder, which is made if it is absent."""

    def __init__(self, url: str) -> None:
        with _own_errors(url):
            self._files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
            self._root = root.rstrip("/")
            self._files.makedirs(f"{self._root}/tmp", exist_ok=True)
            self._files.makedirs(f"{self._root}/objects", exist_ok=True)

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        final, size = self._path(key), 0
        temporary = f"{self._root}/tmp/{secrets.token_hex(16)}"
        try:
            with _own_errors(key):
                out = self._files.open(temporary, "wb")
            try:
                for chunk in chunks:
                    with _own_errors(key):
                        out.write(chunk)
                    size += len(chunk)
            finally:
                with _own_errors(key):
                    out.close()
            with _own_errors(key):
                if self._files.size(temporary) != size:
                    raise Unavailable(f"object {key}: the store has kept another number of bytes")
                self._files.makedirs(final.rpartition("/")[0], exist_ok=True)
                self._files.mv(temporary, final)
        except BaseException:
            with contextlib.suppress(Exception):  # what failed is the error to report
                self._files.rm_file(temporary)
            raise
        return size

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        left = clipped(key, self.size(key), start, length)
        with _own_errors(key):
            file = self._files.open(self._path(key), "rb", block_size=CHUNK_BYTES)
        return self._read(key, file, start, left)

    def _read(self, key: str, file: Any, start: int, left: int) -> Iterator[bytes]:
        with file:
            with _own_errors(key):
                file.seek(start)
            while left:
                with _own_errors(key):
                    chunk = file.read(min(CHUNK_BYTES, left))
                if not chunk:
                    raise Unavailable(f"object {key} is shorter than it was")
                left -= len(chunk)
                yield chunk

    def size(self, key: str) -> int:
        path = self._path(key)
        with _own_errors(key):
            return int(self._files.size(path))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _own_errors(key), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(path)

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        objects = f"{self._root}/objects"
        with _own_errors(prefix):
            found = self._files.find(objects, detail=True)
        for path, facts in found.items():
            key = path.removeprefix(f"{objects}/")
            if key.startswith(prefix):
                yield BlobFacts(key, int(facts["size"]))

    def check(self) -> None:
        probe = f"{self._root}/tmp/check-{secrets.token_hex(8)}"
        with _own_errors(self._root):
            self._files.pipe_file(probe, b"x")
            self._files.rm_file(probe)

    def _path(self, key: str) -> str:
        return f"{self._root}/objects/{checked_key(key)}"


@contextlib.contextmanager
def _own_errors(what: str) -> Iterator[None]:
    """Turn what fsspec and its file systems raise into errors of cachesvc's."""
    try:
        yield
    except (CacheSvcError, GeneratorExit):
        raise
    except FileNotFoundError:
        raise missing(what) from None
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"{what}: {type(error).__name__}: {error}"[:300]
        raise (StorageFull if full else Unavailable)(text) from error
