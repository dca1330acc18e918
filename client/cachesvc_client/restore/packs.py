"""Fetches the pack of an accepted revision: from a registry onto this node, or from a bundle file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..node.installed import PackSource, RestoreResult
from ..wire.durations import duration_text
from ..wire.errors import CacheSvcError, Unavailable
from ..wire.manifest.records import PackRecord
from ..wire.requests.protocol import ResolvedRevision

if TYPE_CHECKING:
    from ..http.registry import Remote
    from ..node.parts.pack_store import Watcher
    from .settings import RestoreTarget


@dataclass(frozen=True, slots=True)
class BundlePack(PackSource):
    """The pack inside a bundle file, ``offset`` bytes after its begin."""

    path: Path
    offset: int

    def fetch(self, watcher: Watcher | None = None, *, own: bool = False) -> Path:
        """Return the path of the bundle file."""
        del watcher, own
        return self.path


@dataclass(frozen=True, slots=True)
class RegistryPack(PackSource):
    """The pack of a revision that a registry offers. ``patience``: see `RestoreSettings`. ``result``: where
    seconds and bytes of the download are counted."""

    resolved: ResolvedRevision
    record: PackRecord
    remote: Remote
    target: RestoreTarget
    patience: float | None
    result: RestoreResult

    def fetch(self, watcher: Watcher | None = None, *, own: bool = False) -> Path:
        """Return the path of the pack on this node, after a download if the node lacks it."""
        store, offers, pack = self.target.store, self.target.offers, self.record
        if offers is not None and not own:
            shared = store.pack(pack.digest, pack.size) or offers.store.pack(pack.digest, pack.size)
            if shared is not None:
                return shared
        self._leave_slow()
        with self.result.timed("download"), store.slow.awaited(pack.digest):
            path, moved = store.fetch(pack.digest, pack.size, self._download, watcher)
            self.result.moved += moved
        return path

    def _download(self, offset: int) -> Iterator[bytes]:
        return self.remote.downloads.fetch(self.resolved, self.record, offset)

    def _leave_slow(self) -> None:
        """Raise ``Unavailable`` for a pack that came so slowly a while ago that this start would wait in
        vain. A thread downloads it for a later start."""
        from ..node.parts.pack_store import STALLED_SECONDS
        from ..node.parts.slow_downloads import REMEMBERED_SECONDS

        store, pack = self.target.store, self.record
        left = store.slow.seconds_left(pack.digest, pack.size)
        in_time = self.patience is None or left <= self.patience
        if in_time or store.pack(pack.digest, pack.size) is not None:
            return
        if not store.slow.is_moving(pack.digest, STALLED_SECONDS):
            with suppress(RuntimeError):  # no more threads
                threading.Thread(target=self._download_later, name="cachesvc-download", daemon=True).start()
        raise Unavailable(
            f"pack {pack.digest}: it came too slowly for an earlier start, and this one does not wait for it",
            "look at the network to the registry; a start waits again in "
            f"{duration_text(REMEMBERED_SECONDS)}",
        )

    def _download_later(self) -> None:
        with suppress(CacheSvcError):
            self.target.store.fetch(self.record.digest, self.record.size, self._download)
