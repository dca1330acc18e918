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
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from ..wire.digest import Digest
from ..wire.durations import MAX_OFFLINE_SECONDS
from ..wire.errors import Corrupt, StorageFull, TooLarge, Unavailable
from ..wire.protocol import ANSWER_SECONDS
from ..wire.sizes import parse_size
from .load_mark import PART, LoadMark, settle_left_behind
from .private_folders import PrivateFolders
from .slow_downloads import SlowDownloads
from .store_files import FULL_ERRORS, StoreFiles, open_plain_file
from .store_root import SETTING, store_root

DEFAULT_MAX_BYTES = 20 << 30
"""Bytes of packs that a node keeps, where ``CACHESVC_STORE_BYTES`` says nothing else."""
JUST_USED_SECONDS = 60
"""Seconds within which a reader opens a pack that was handed out; after that the reader has a lock."""
STALLED_SECONDS = 15.0
"""Seconds without a byte, after which a process waits for another one's download no longer. A transfer fails
when no byte moved for 10 seconds (`http.registry`), so its process is stopped or hangs then."""
_LEFTOVER_SECONDS = 24 * 3600
"""Age in seconds from which temporary files, locks and folders of jobs are removed."""
_OWN_SECONDS = 30 * 24 * 3600
"""Seconds without use after which own results are removed."""
_MAX_ANSWER_BYTES = 192 << 20
"""Bytes of a kept answer, at most: as many as are read of a registry's (`http.registry`)."""
_MAX_USED_BYTES = 20_000
"""Bytes that are read of what a program used: about 250 entries."""
_MAX_DISTRUSTED = 1000
"""Number of marks of distrusted revisions that are kept; the oldest are removed first."""
_CRASHED_ONCE = b"crashed once"
"""Second line of the mark of a revision, where a process crashed while it loaded files of it: it is installed
again, and a second crash withdraws it."""
_CRASHED = b"crashed"
"""Second line of the mark where that happened twice."""
CRASH_SECONDS = 7 * 24 * 3600
"""Seconds after which a mark of crashes counts no more: the machine may be another one by then."""
_MAX_STARTS = 1000
"""Number of starts whose outcome is kept; the oldest are removed first."""

Download = Callable[[int], Iterator[bytes]]
"""Returns the bytes of a pack from an offset on."""


class Watcher(Protocol):
    """Follows the download of a pack."""

    def receive(self, path: Path, size: int) -> None:
        """Follows the download: the first ``size`` bytes are in ``path`` now, unchecked. Must not raise."""

    def is_whole(self) -> bool:
        """Returns whether every byte of the pack was read and had the digest that was signed, frame by
        frame."""


_MOST_SIGNERS = 64
"""Signers of one entry whose highest sequences are kept, at most."""
_SEEN_BYTES = 16 << 10


def default_root() -> Path:
    """Return ``CACHESVC_STORE``; else the first of the usual folders that can be used, see `store_root`.

    Raise ``NoFolder`` if none can.
    """
    if configured_root := os.environ.get(SETTING):
        return Path(configured_root)
    return store_root()


def max_store_bytes() -> int:
    """Returns the bytes of packs that a node keeps: ``CACHESVC_STORE_BYTES``, or the default. A malformed
    value, which `config` refuses, counts as not set."""
    with contextlib.suppress(ValueError):
        return parse_size(os.environ.get("CACHESVC_STORE_BYTES", ""))
    return DEFAULT_MAX_BYTES


class NodeStore:
    """Keeps what the processes of a node share. Safe for threads and for processes; where a process was
    killed at any step, the next process goes on.

    ``max_bytes`` bounds the packs (private folders go once no one uses them); `max_store_bytes` if absent.
    ``step`` receives the name of each step that was done, for tests that kill the process at a step.
    """

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
        self._folders = PrivateFolders(self._files)
        self._load_mark = LoadMark(self._files)
        self.slow = SlowDownloads(self._files)

    @property
    def trust_folder(self) -> Path:
        """Returns the folder for the trust metadata of registries, which are verified at each start."""
        return self._files.path("trust", "")

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

    def remember_answer(self, key: Digest, answer: bytes, age: float = 0.0) -> None:
        """Keeps a resolve's answer, which is ``age`` seconds old, for the other processes that start now."""
        with self._files.raise_storage_full():
            self._files.sweep("resolved", MAX_OFFLINE_SECONDS)
            self._files.put("resolved", key.hex, answer, age)

    def recent_answer(self, key: Digest, max_age: float = ANSWER_SECONDS) -> bytes | None:
        """Returns a kept answer that is at most ``max_age`` seconds old."""
        try:
            answer, status = self._files.read("resolved", key.hex, _MAX_ANSWER_BYTES + 1)
        except OSError:
            return None
        fresh = 0 <= time.time() - status.st_mtime <= max_age
        return answer if fresh and len(answer) <= _MAX_ANSWER_BYTES else None

    @contextlib.contextmanager
    def one_question(self, key: Digest, seconds: float) -> Iterator[bool]:
        """Has one process of the node ask a registry what several want to know now: the others wait until it
        has kept the answer, ``seconds`` at most. Yields whether this process waited for another one, and so
        should search for a kept answer first. Raises nothing: without room for a lock, each process asks.

        What comes after the block of a process that waited is not held up by others: if the first one got
        no answer, all of them ask at once.
        """
        until, waited = time.monotonic() + seconds, False

        def give_up() -> bool:
            nonlocal waited
            waited = True
            return time.monotonic() > until

        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(self._files.lock(f"ask-{key.hex}", give_up=give_up))
            if waited:
                stack.close()
            yield waited

    def answer_age(self, key: Digest) -> float | None:
        """Returns how many seconds old a kept answer is; ``None`` if there is none, or one of the future."""
        try:
            age = time.time() - self._files.path("resolved", key.hex).stat().st_mtime
        except OSError:
            return None
        return age if age >= 0 else None

    def remember_used(self, program: Digest, entries: Iterable[Digest]) -> None:
        """Keeps which entries a program used, the last start's alone. Raises ``StorageFull``."""
        with self._files.raise_storage_full():
            self._files.sweep("used", _OWN_SECONDS)
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
                self._files.sweep("starts", _OWN_SECONDS)
                for path in sorted(path for path, _ in self._files.entries("starts"))[: 1 - _MAX_STARTS]:
                    path.unlink(missing_ok=True)
            self._files.put("starts", name, record)

    def starts(self, limit: int) -> Iterator[bytes]:
        """Yields the first ``limit`` bytes of each kept start, the oldest first. The caller treats them as
        hostile."""
        for path in sorted(path for path, _ in self._files.entries("starts")):
            with contextlib.suppress(OSError):
                yield self._files.read("starts", path.name, limit)[0]

    def folder(self, name: Digest) -> Path:
        """Opens the private cache folder of this name, see `PrivateFolders.open`."""
        return self._folders.open(name)

    def own_folder(self, purpose: str) -> Path:
        """Opens a private folder that no other process gets, see `PrivateFolders.open_own`."""
        return self._folders.open_own(purpose)

    def leave(self, path: Path) -> None:
        """Ends this process's use of a private folder, see `PrivateFolders.leave`."""
        self._folders.leave(path)

    def sweep_folders(self) -> None:
        """Removes the private folders that no one is seen to use, see `PrivateFolders.sweep`. Never raises.
        It needs seconds where many processes run."""
        with contextlib.suppress(OSError), self._files.lock("folders", wait=False):
            self._folders.sweep()

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
            self._files.sweep("probes", _OWN_SECONDS)
            self._files.put("probes", environment.hex, mark)

    def job(self, key: Digest) -> Path:
        """Makes the folder in which the ranks of a job leave files for each other. It is removed a day after
        its last change."""
        path = self._files.path("jobs", key.hex)
        with self._files.raise_storage_full():
            path.mkdir(mode=0o700, exist_ok=True)
        return path

    def evict(self, keep: Digest | None = None) -> None:
        """Removes the packs that were used longest ago until the rest fits, own results that were not used
        for 30 days, and leftovers that are a day old. Keeps ``keep`` and what is in use. Never raises."""
        with contextlib.suppress(OSError, StorageFull), self._files.lock("evict", wait=False):
            for part in ("partial", "tmp", "locks", "jobs"):
                self._files.sweep(part, _LEFTOVER_SECONDS)
            self._evict_packs(keep)
            self._files.sweep("own", _OWN_SECONDS)

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
