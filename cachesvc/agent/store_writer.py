"""Fill the store that the services of a node read, as its only writer."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cachesvc_client.node.parts.pack_store import Download, PackStore
from cachesvc_client.node.parts.revision_marks import RevisionMarks
from cachesvc_client.node.shared_store import READABLE
from cachesvc_client.node.store_files import LAYOUT, remove_entry
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest

_LOCK = "agent"
"""Name of the lock that the one writer holds."""


class SharedStoreWriter(PackStore):
    """Fills the store, as its only writer: `held` is to be entered first."""

    def __init__(
        self, root: Path, max_bytes: int | None = None, step: Callable[[str], None] = lambda _name: None
    ) -> None:
        """Makes the parts and opens those that services read. Raises as `PackStore` does."""
        super().__init__(root, max_bytes, step)
        self.marks = RevisionMarks(self._files)
        with self._files.raise_storage_full():
            for folder in (root, root / LAYOUT, *(root / LAYOUT / part for part in READABLE)):
                folder.chmod(0o755)

    @property
    def trust_folder(self) -> Path:
        """Return the folder for the trust metadata of registries."""
        return self._files.path("trust", "")

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
