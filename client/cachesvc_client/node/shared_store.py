"""Owns the store that a node's agent fills and that the services of the node read: one writer, many readers.

    <root>/v1/packs/<hex>       whole packs
    <root>/v1/lists/<hex>       what a registry offers under a name and tag, see `wire.node_list`; its time of
                                modification says when the registry said so
    <root>/v1/envelopes/<hex>   the signed envelope of each listed revision
    <root>/v1/trust/<hex>/      verified trust metadata; the time of ``timestamp.json`` says when they were
                                asked for

The layout is that of `node.store`, and these four parts are readable for everybody. Readers write nothing,
need no lock, and trust nothing here: envelopes are checked as if they came from the network, and packs frame
by frame when they are installed. So a hostile writer can withhold what is new, and no more. The operator
decides who may be the writer (`open_shared_store`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from ..wire.digest import Digest
from ..wire.errors import InvalidRequest, NotFound, Untrusted
from ..wire.node_list import MAX_LIST_BYTES
from ..wire.records import MAX_ENVELOPE_BYTES
from .parts.pack_store import Download
from .path_owners import refuse_foreign_path
from .store import NodeStore
from .store_files import LAYOUT, open_plain_file, remove_entry

READABLE = ("packs", "lists", "envelopes", "trust")
"""Parts that services read."""
_LOCK = "agent"
"""Name of the lock that the one writer holds."""


class SharedStore:
    """Reads the store of this node's agent."""

    def __init__(self, root: Path) -> None:
        self._base = root / LAYOUT

    @property
    def trust_folder(self) -> Path:
        """Returns the folder with the trust metadata of registries."""
        return self._base / "trust"

    def pack(self, digest: Digest, size: int) -> Path | None:
        """Returns the path of a pack of ``size`` bytes; ``None`` if it is not here, or cannot be read."""
        path = self._base / "packs" / digest.hex
        try:
            status = path.lstat()
        except OSError:
            return None
        whole = stat.S_ISREG(status.st_mode) and status.st_size == size
        return path if whole and os.access(path, os.R_OK) else None

    def list_of(self, key: Digest) -> tuple[bytes, float] | None:
        """Returns a list and how many seconds old it is; ``None`` if it is not here or is of the future."""
        found = self._read("lists", key.hex, MAX_LIST_BYTES)
        if found is None:
            return None
        age = time.time() - found[1].st_mtime
        return (found[0], max(0.0, age)) if age > -1 else None

    def envelope(self, revision: Digest) -> bytes | None:
        """Returns the envelope of a listed revision, unchecked; ``None`` if it is not here."""
        found = self._read("envelopes", revision.hex, MAX_ENVELOPE_BYTES)
        return found[0] if found else None

    def _read(self, part: str, name: str, limit: int) -> tuple[bytes, os.stat_result] | None:
        try:
            with os.fdopen(open_plain_file(self._base / part / name, os.O_RDONLY), "rb") as file:
                data, status = file.read(limit + 1), os.fstat(file.fileno())
        except OSError:
            return None
        return (data, status) if len(data) <= limit else None


def open_shared_store(root: Path, owner: int | None) -> SharedStore:
    """Opens the store of this node's agent to read it.

    ``owner``: the user who may write it, beside this one and root. Raises ``NotFound`` if there is none yet,
    and ``Untrusted`` if another user could write there.
    """
    refuse_foreign_path(root.parent)
    allowed = {0, os.geteuid(), *(() if owner is None else (owner,))}
    for folder in (root, root / LAYOUT, *(root / LAYOUT / part for part in READABLE)):
        _refuse_other_writers(folder, allowed)
    return SharedStore(root)


def _refuse_other_writers(folder: Path, allowed: Collection[int]) -> None:
    try:
        status = folder.lstat()
    except OSError as error:
        raise NotFound(f"the node's store {folder}: {error.strerror}", "start cachesvc node there") from None
    if not stat.S_ISDIR(status.st_mode):
        raise Untrusted(f"the node's store: {folder} is not a folder")
    if status.st_uid not in allowed:
        raise Untrusted(
            f"the node's store: {folder} belongs to user {status.st_uid}",
            f"if that is the agent, set CACHESVC_NODE_OWNER={status.st_uid}",
        )
    if status.st_mode & 0o022:
        raise Untrusted(f"the node's store: others may write to {folder}", f"chmod go-w {folder}")


class SharedStoreWriter(NodeStore):
    """Fills the store, as its only writer: `held` is to be entered first."""

    def __init__(
        self, root: Path, max_bytes: int | None = None, step: Callable[[str], None] = lambda _name: None
    ) -> None:
        """Makes the parts and opens those that services read. Raises as `NodeStore` does."""
        super().__init__(root, max_bytes, step)
        with self._files.raise_storage_full():
            for folder in (root, root / LAYOUT, *(root / LAYOUT / part for part in READABLE)):
                folder.chmod(0o755)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Is the only writer for the length of the block. Raises ``InvalidRequest`` if there is one."""
        with self._files.raise_storage_full(), contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._files.lock(_LOCK, wait=False))
            except BlockingIOError:
                raise InvalidRequest(
                    f"the node's store {self.root}: another agent fills it", "one agent for each store"
                ) from None
            yield

    def hold_pack(self, digest: Digest, size: int, download: Download) -> int:
        """Has a pack here, readable for everybody; returns how many bytes were moved. Raises as `fetch`."""
        path, moved = self.fetch(digest, size, download)
        self.open_to_readers(path)
        return moved

    def open_to_readers(self, path: Path) -> None:
        """Makes a file readable for everybody."""
        with self._files.raise_storage_full():
            if path.stat().st_mode & 0o777 != 0o644:
                path.chmod(0o644)

    def open_trust(self, asked: bool) -> None:
        """Makes the trust metadata readable for everybody; ``asked``: the registry said a moment ago that
        they are the present ones."""
        for folder, _, names in os.walk(self.trust_folder):
            with contextlib.suppress(OSError):
                Path(folder).chmod(0o755)
            for name in names:
                with contextlib.suppress(OSError):
                    Path(folder, name).chmod(0o644)
                    if asked and name == "timestamp.json":
                        os.utime(Path(folder, name))

    def put_envelope(self, revision: Digest, envelope: bytes) -> None:
        """Keeps the envelope of a revision. Raises ``StorageFull``."""
        with self._files.raise_storage_full():
            self._put("envelopes", revision.hex, envelope, 0.0)

    def put_list(self, key: Digest, data: bytes, age: float) -> None:
        """Keeps a list, which a registry answered ``age`` seconds ago. Raises ``StorageFull``."""
        with self._files.raise_storage_full():
            self._put("lists", key.hex, data, age)

    def has_envelope(self, revision: Digest) -> bool:
        """Returns whether the envelope of a revision is here."""
        return self._files.path("envelopes", revision.hex).is_file()

    def packs(self) -> dict[str, os.stat_result]:
        """Returns the packs that are here, by the digits of their digest."""
        with self._files.raise_storage_full():
            return {path.name: status for path, status in self._files.entries("packs")}

    def pack_path(self, name: str) -> Path:
        """Returns where a pack is, or would be, by the digits of its digest."""
        return self._files.path("packs", name)

    def remove_pack(self, name: str) -> None:
        """Removes a pack. A service that has it open reads on: neither the service nor a lock of another
        one keeps the writer from its bound."""
        remove_entry(self._files.path("packs", name))

    def keep_only(self, part: str, names: Iterable[str]) -> None:
        """Removes the lists or envelopes that have none of these names."""
        kept = set(names)
        with self._files.raise_storage_full():
            for path, _ in self._files.entries(part):
                if path.name not in kept:
                    remove_entry(path)

    def _put(self, part: str, name: str, data: bytes, age: float) -> None:
        temporary = self._files.temporary()
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        if age:
            os.utime(temporary, (time.time() - age,) * 2)
        self._step("written")
        os.replace(temporary, self._files.path(part, name))
        self._step("placed")
