"""Owns the node store: what the processes of one node share, so that each pack is downloaded once.

    <root>/v1/packs/<hex>         whole packs; the time of modification is that of the last use
    <root>/v1/partial/<hex>       beginning of a pack: a download under way, or what the next one continues
    <root>/v1/slow/<hex>          how fast a pack came for which a start waited in vain; good for minutes
    <root>/v1/locks/<name>        held (flock) by a process that downloads, evicts or updates; empty files
    <root>/v1/seen/<hex>          per entry and signer, the highest sequence that was accepted
    <root>/v1/distrusted/<hex>    per entry, the revision that this node withdrew, and why
    <root>/v1/loading/<name>      held by a process that loads restored files: the revisions that have these
    <root>/v1/resolved/<hex>      the last answers to resolves: good for seconds, and for an outage
    <root>/v1/used/<hex>          entries that a program used at its last start, of a name with many
    <root>/v1/starts/<time>-<pid> what a start came to, for the command `stats`
    <root>/v1/folders/<hex>/      private cache folders, 0700: each is named by what it may hold, and new
    <root>/v1/users/<hex>.<hex>   held by a process that uses the private folder of this name
    <root>/v1/own/<hex>.cachesvc  what was compiled in the folder of this name, signed by this node's own key
    <root>/v1/jobs/<hex>/         what the ranks of one job leave for each other, see `ranks.job_folder`
    <root>/v1/trust/<hex>/        verified trust metadata, for each registry and pinned root
    <root>/v1/probes/<hex>        environments in which the probe of `warm` passed, signed by that key
    <root>/v1/tmp/                files and folders that are being made or removed

Everything here may be deleted at any time. Nothing here is trusted: packs are verified frame by frame when
they are installed, and answers are checked as if they came from the network. So nothing is flushed to the
disk either (0.1 to 0.5 s for 100 MB): a pack that a power failure cut short has another size, or frames with
other digests, and is downloaded again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..wire.digest import Digest
from .parts.kept_answers import KeptAnswers
from .parts.pack_store import UNUSED_SECONDS, PackStore
from .parts.private_folders import PrivateFolders
from .parts.revision_marks import RevisionMarks
from .parts.slow_downloads import SlowDownloads
from .store_root import SETTING, store_root

_MAX_USED_BYTES = 20_000
"""Bytes that are read of what a program used: about 250 entries."""
_MAX_STARTS = 1000
"""Number of starts whose outcome is kept; the oldest are removed first."""


def default_root() -> Path:
    """Return ``CACHESVC_STORE``; else the first of the usual folders that can be used, see `store_root`.

    Raise ``NoFolder`` if none can.
    """
    if configured_root := os.environ.get(SETTING):
        return Path(configured_root)
    return store_root()


class NodeStore(PackStore):
    """Keeps what the processes of a node share: the packs, the ``answers`` of registries, the ``marks`` of
    revisions, private ``folders``, and what one start keeps for the next. Safe for threads and for processes;
    where a process was killed at any step, the next process goes on.

    ``max_bytes`` bounds the packs (private folders go once no one uses them); `max_store_bytes` if absent.
    ``step`` receives the name of each step that was done, for tests that kill the process at a step.
    """

    def __init__(
        self,
        root: Path,
        max_bytes: int | None = None,
        step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """As `PackStore`."""
        super().__init__(root, max_bytes, step)
        self.folders = PrivateFolders(self._files)
        self.answers = KeptAnswers(self._files)
        self.marks = RevisionMarks(self._files)
        self.slow = SlowDownloads(self._files)

    @property
    def trust_folder(self) -> Path:
        """Returns the folder for the trust metadata of registries, which are verified at each start."""
        return self._files.path("trust", "")

    def remember_used(self, program: Digest, entries: Iterable[Digest]) -> None:
        """Keeps which entries a program used, the last start's alone. Raises ``StorageFull``."""
        with self._files.raise_storage_full():
            self._files.sweep("used", UNUSED_SECONDS)
            self._files.put("used", program.hex, "\n".join(map(str, entries)).encode())

    def used_entries(self, program: Digest) -> list[Digest]:
        """Returns the entries that the last start of a program used. The caller treats them as a guess: a
        store may come from a cache that others filled."""
        try:
            words = self._files.read("used", program.hex, _MAX_USED_BYTES)[0].decode("ascii").split()
            return [Digest(word) for word in words]
        except (OSError, ValueError):
            return []

    def keep_start(self, name: str, record: bytes) -> None:
        """Keeps what one start came to, in place of what was kept under the same ``name`` before; the names
        sort by time. Raises ``StorageFull``."""
        with self._files.raise_storage_full():
            if not self._files.path("starts", name).exists():
                self._files.sweep("starts", UNUSED_SECONDS)
                for path in sorted(path for path, _ in self._files.entries("starts"))[: 1 - _MAX_STARTS]:
                    path.unlink(missing_ok=True)
            self._files.put("starts", name, record)

    def starts(self, limit: int) -> Iterator[bytes]:
        """Yields the first ``limit`` bytes of each kept start, the oldest first. The caller treats them as
        hostile."""
        for path in sorted(path for path, _ in self._files.entries("starts")):
            with contextlib.suppress(OSError):
                yield self._files.read("starts", path.name, limit)[0]

    def sweep_folders(self) -> None:
        """Removes the private folders that no one is seen to use, see `PrivateFolders.sweep`. Never raises.
        It needs seconds where many processes run."""
        with contextlib.suppress(OSError), self._files.lock("folders", wait=False):
            self.folders.sweep()

    def own_results(self, folder: Digest) -> Path:
        """Names the file that keeps what was compiled in a private folder, for the next process that uses
        it."""
        return self._files.path("own", f"{folder.hex}.cachesvc")

    def probe_mark(self, environment: Digest) -> bytes | None:
        """Returns the mark that the conformance probe left for an environment; ``None`` if there is none. The
        caller checks it: a store may come from a cache that others filled."""
        try:
            return self._files.read("probes", environment.hex, 200)[0]
        except OSError:
            return None

    def keep_probe_mark(self, environment: Digest, mark: bytes) -> None:
        """Keeps the mark of an environment in which the conformance probe passed. Raises ``StorageFull``."""
        with self._files.raise_storage_full():
            self._files.sweep("probes", UNUSED_SECONDS)
            self._files.put("probes", environment.hex, mark)

    def job(self, key: Digest) -> Path:
        """Makes the folder in which the ranks of a job leave files for each other. It is removed a day after
        its last change."""
        path = self._files.path("jobs", key.hex)
        with self._files.raise_storage_full():
            path.mkdir(mode=0o700, exist_ok=True)
        return path
