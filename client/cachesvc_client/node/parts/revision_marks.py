"""Keeps what this node knows of revisions: the sequences that were accepted, and those that it distrusts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from ...wire.digest import Digest
from ..store_files import StoreFiles
from .load_mark import PART, LoadMark, settle_left_behind

_MAX_DISTRUSTED = 1000
"""Number of marks of distrusted revisions that are kept; the oldest are removed first."""
_CRASHED_ONCE = b"crashed once"
"""Second line of the mark of a revision, where a process crashed while it loaded files of it: it is installed
again, and a second crash withdraws it."""
_CRASHED = b"crashed"
"""Second line of the mark where that happened twice."""
CRASH_SECONDS = 7 * 24 * 3600
"""Seconds after which a mark of crashes counts no more: the machine may be another one by then."""
_MOST_SIGNERS = 64
"""Signers of one entry whose highest sequences are kept, at most."""
_SEEN_BYTES = 16 << 10


class RevisionMarks:
    """Keeps the marks of revisions."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._load_mark = LoadMark(files)

    def sequences(self, entry: Digest) -> dict[str, int]:
        """Return by signer the highest sequence that was accepted for this entry on this node."""
        try:
            lines = self._files.read("seen", entry.hex, _SEEN_BYTES)[0].decode().splitlines()
            return {signer: int(sequence) for signer, sequence in map(str.split, lines)}
        except (OSError, ValueError):
            return {}

    def record_sequence(self, entry: Digest, sequence: int, signer: str) -> None:
        """Record the sequence of an accepted revision; a lower one of its signer than before changes
        nothing. Of very many signers those with the highest ones are kept."""
        with self._files.raise_storage_full(), self._files.lock("seen"):
            seen = self.sequences(entry)
            if sequence > seen.get(signer, 0):
                seen[signer] = sequence
                kept = sorted(seen.items(), key=lambda one: one[1])[-_MOST_SIGNERS:]
                self._files.put("seen", entry.hex, "".join(f"{one} {last}\n" for one, last in kept).encode())

    def distrust(self, entry: Digest, revision: Digest) -> None:
        """Marks a revision of an entry, whose numbers a canary found wrong: it is not to be installed on this
        node again."""
        with self._files.raise_storage_full():
            self._mark(entry, str(revision).encode())

    def _mark(self, entry: Digest, mark: bytes) -> None:
        self._files.put("distrusted", entry.hex, mark)
        marks = sorted(self._files.entries("distrusted"), key=lambda mark: mark[1].st_mtime)
        for path, _ in marks[:-_MAX_DISTRUSTED]:
            path.unlink(missing_ok=True)

    def distrusts(self, entry: Digest, revision: Digest) -> bool:
        """Returns whether this revision is the marked one of its entry, and was not marked for one crash."""
        return self._marked(entry, revision) not in (None, _CRASHED_ONCE)

    def crashed_of(self, entry: Digest, revision: Digest) -> Path | None:
        """Returns the file of the mark if this revision is the marked one of its entry because two processes
        crashed while they loaded files of it."""
        is_so = self._marked(entry, revision) == _CRASHED
        return self._files.path("distrusted", entry.hex) if is_so else None

    def _marked(self, entry: Digest, revision: Digest) -> bytes | None:
        """Returns the second line of an entry's mark, if the mark names this revision and still counts."""
        with contextlib.suppress(OSError):
            if any(self._files.entries(PART)):
                with self._files.lock(PART):
                    settle_left_behind(self._files, self._count_crash)
        return self._mark_of(entry, revision)

    def _mark_of(self, entry: Digest, revision: Digest) -> bytes | None:
        try:
            text, status = self._files.read("distrusted", entry.hex, 200)
        except OSError:
            return None
        named, _, why = text.partition(b"\n")
        is_over = bool(why) and not 0 <= time.time() - status.st_mtime <= CRASH_SECONDS
        return why if named == str(revision).encode() and not is_over else None

    def _count_crash(self, entry: Digest, revision: Digest) -> None:
        before = self._mark_of(entry, revision)
        if before != b"":  # else a canary has withdrawn it, for good
            why = _CRASHED_ONCE if before is None else _CRASHED
            self._mark(entry, f"{revision}\n".encode() + why)

    def loading(self, revisions: Iterable[tuple[Digest, Digest]]) -> contextlib.AbstractContextManager[None]:
        """Guards a block that loads files of revisions, each given with its entry: if two processes crash in
        the block, this node distrusts these revisions for a while. An exception that leaves the block is none
        of that, and neither is a signal from outside. Raises nothing: without room for a mark, the block is
        not guarded."""
        return self._load_mark.loading(revisions)

    def trust_again(self, entry: Digest, revision: Digest) -> None:
        """Removes the mark of an older revision, whose place this one has taken."""
        if self._marked(entry, revision) is not None:
            return
        with contextlib.suppress(OSError):
            self._files.path("distrusted", entry.hex).unlink(missing_ok=True)
