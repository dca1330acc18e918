"""Remembers on a node which packs came too slowly for a start, so that the next starts do not wait for them.

A pack that drips never stalls for good: each start would wait its whole deadline for it, and compile. The
node remembers for a while how fast the bytes came, and a start goes on at once if the rest would take too
long.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

from ...wire.digest import Digest
from ...wire.errors import StorageFull, Unavailable
from ..store_files import StoreFiles

PART = "slow"
"""Name of the part of a store that has the marks, each named by its pack."""
REMEMBERED_SECONDS = 600.0
"""Seconds after which a mark counts no more: then one start tries again."""
_LEAST_SECONDS = 1.0
"""Seconds that a download took, at least, whose failure is remembered: what fails at once keeps no one."""
_MAX_BYTES = 40


class SlowDownloads:
    """Measures the downloads for which a start of this process waits, and keeps the marks of slow ones."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._awaited: dict[Digest, tuple[float, int]] = {}
        """When the wait for each pack began (``time.monotonic``), and how many bytes were there."""

    @contextlib.contextmanager
    def awaited(self, pack: Digest) -> Iterator[None]:
        """Guard a block in which a start waits for the download of a pack, by whatever process. If it ends
        for want of bytes, that is remembered."""
        begin = self._awaited[pack] = (time.monotonic(), self._size(pack))
        try:
            yield
        except Unavailable:
            if time.monotonic() - begin[0] >= _LEAST_SECONDS:
                self._keep(pack, *begin)
            raise
        finally:
            self._awaited.pop(pack, None)

    def note_late(self) -> None:
        """Remember the packs for which a start of this process waits now: it waits no longer."""
        for pack, begin in list(self._awaited.items()):
            self._keep(pack, *begin)

    def seconds_left(self, pack: Digest, size: int) -> float:
        """Return the seconds that the rest of a pack takes at the pace that was seen; 0 if none was, or too
        long ago."""
        try:
            text, status = self._files.read(PART, pack.hex, _MAX_BYTES)
            pace = float(text)
        except (OSError, ValueError):
            return 0.0
        if not 0 <= time.time() - status.st_mtime <= REMEMBERED_SECONDS:
            return 0.0
        return (size - self._size(pack)) / pace if pace > 0 else math.inf

    def is_moving(self, pack: Digest, seconds: float) -> bool:
        """Return whether some process has got bytes of a pack in the last seconds."""
        try:
            return time.time() - self._files.path("partial", pack.hex).stat().st_mtime < seconds
        except OSError:
            return False

    def _keep(self, pack: Digest, begin: float, before: int) -> None:
        pace = max(0, self._size(pack) - before) / max(time.monotonic() - begin, 0.001)
        with contextlib.suppress(OSError, StorageFull):
            self._files.sweep(PART, REMEMBERED_SECONDS)
            self._files.put(PART, pack.hex, f"{pace:.3f}".encode())

    def _size(self, pack: Digest) -> int:
        try:
            return self._files.path("partial", pack.hex).lstat().st_size
        except OSError:
            return 0
