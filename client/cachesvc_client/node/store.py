"""The node store: what the processes of one node share, so that each pack is downloaded once.

    <root>/v1/packs/<hex>      whole packs; the time of modification is that of the last use
    <root>/v1/partial/<hex>    a download under way, or what a killed one left: the next goes on there
    <root>/v1/locks/<name>     held (flock) by whoever downloads, evicts or updates; empty files
    <root>/v1/seen/<hex>       per entry, the highest sequence that was accepted
    <root>/v1/distrusted/<hex> per entry, the revision whose numbers a canary found wrong
    <root>/v1/resolved/<hex>   the last answers to resolves: good for seconds, and for an outage
    <root>/v1/folders/<hex>/   private cache folders, 0700: each is named by what it may hold
    <root>/v1/own/<hex>.cachesvc  what was compiled in the folder of this name, signed by this node's own key
    <root>/v1/jobs/<hex>/      what the ranks of one job leave for each other, see `ranks.votes`
    <root>/v1/tmp/             what is being made or removed

Everything here may be deleted at any time. Nothing here is trusted: packs are verified frame by frame
when they are installed, and answers pass the gate as if they came from the network. So nothing is
flushed to the disk either (0.1 to 0.5 s for 100 MB): what a power failure cut short has another size, or
frames with other digests, and is downloaded again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..wire.digest import Digest
from ..wire.errors import Corrupt, StorageFull, TooLarge, Unavailable, Untrusted

LAYOUT = "v1"
DEFAULT_MAX_BYTES = 20 << 30
OUTAGE_SECONDS = 7 * 24 * 3600
"""A node starts from its last answer for this long while the registry cannot be reached."""
_PARTS = ("packs", "partial", "locks", "seen", "distrusted", "resolved", "folders", "own", "jobs", "tmp")
_JUST_USED_SECONDS = 60
"""A pack that was handed out is opened within this time; after that its reader holds a lock."""
_LEFTOVER_SECONDS = 24 * 3600
_FOLDER_SECONDS = 30 * 24 * 3600
_MAX_DISTRUSTED = 1000
"""Marks that are kept; the oldest go first."""
_MOST_OWN_FOLDERS = 4096
"""Processes of a node that can have a folder of their own at the same time."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Download = Callable[[int], Iterator[bytes]]
"""The bytes of a pack from an offset on."""


class Watcher(Protocol):
    """Looks at a pack while it arrives."""

    def arrived(self, path: Path, have: int) -> None:
        """The first ``have`` bytes are in ``path``, unchecked. Must not raise."""

    def whole(self) -> bool:
        """Whether every byte of the pack was seen and had the digest that was signed, frame by frame."""


def default_root() -> Path:
    """``CACHESVC_STORE``; else the first that is writable of ``XDG_CACHE_HOME/cachesvc``,
    ``~/.cache/cachesvc`` and ``$TMPDIR/cachesvc-<uid>`` (no home and a read-only root are normal).

    Raises ``StorageFull`` if none is.
    """
    if named := os.environ.get("CACHESVC_STORE"):
        return Path(named)
    candidates = [
        Path(os.environ.get("XDG_CACHE_HOME", "")) / "cachesvc",
        Path(os.path.expanduser("~")) / ".cache" / "cachesvc",
        Path(tempfile.gettempdir()) / f"cachesvc-{os.geteuid()}",
    ]
    for root in candidates:
        if root.is_absolute() and _usable(root):
            return root
    raise StorageFull(
        "node store: none of the usual folders is writable", "set CACHESVC_STORE to one that is"
    )


class NodeStore:
    """See the module. Safe for threads and for processes; killed at any step, the next goes on.

    ``max_bytes`` bounds the packs (private folders go by age). ``step`` is told the name of each step
    that has been done, for tests that kill at each.
    """

    def __init__(
        self,
        root: Path,
        max_bytes: int = DEFAULT_MAX_BYTES,
        step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """Raises ``StorageFull`` if the root cannot be written, ``Untrusted`` if it is another user's."""
        self.root = root
        self.max_bytes = max_bytes
        self._step = step
        self._base = root / LAYOUT
        self._held: dict[Path, int] = {}
        with self._writing():
            root.mkdir(parents=True, exist_ok=True)
            for part in ("", *_PARTS):
                (self._base / part).mkdir(mode=0o700, exist_ok=True)
        _refuse_foreign(self._base)

    def pack(self, digest: Digest, size: int | None = None) -> Path | None:
        """The pack, marked as just used; ``None`` if it is not here, or not of ``size`` bytes."""
        path = self._base / "packs" / digest.hex
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
        """The pack, downloaded if it is not here (``watcher`` is told of it), and how many bytes that moved.

        One process of the node downloads a pack; others wait and find it. A partial download is resumed.
        Guarantees that the bytes had ``size`` and ``digest`` (or, if the watcher says so, the frames that
        were signed with it). Raises ``Corrupt`` (nothing is kept),
        ``TooLarge``, ``StorageFull``, ``Unavailable`` if the download ends early, and what ``download``
        raises; of the last two the next call resumes.
        """
        if size > self.max_bytes:
            raise TooLarge(
                f"pack {digest}: {size} bytes; the node store holds {self.max_bytes}", "raise its bound"
            )
        with self._writing(), self._locked(digest.hex):
            self._step("locked")
            if found := self.pack(digest, size):
                return found, 0
            path, moved = self._download(digest, size, download, watcher)
        self.evict(keep=digest)
        return path, moved

    def discard(self, digest: Digest) -> None:
        """Forgets a pack that turned out to be damaged (``Corrupt`` from a reader or an install); the next
        fetch downloads it again."""
        with self._writing():
            (self._base / "packs" / digest.hex).unlink(missing_ok=True)

    def seen(self, entry: Digest) -> int | None:
        """The highest sequence accepted for this entry on this node."""
        try:
            return int((self._base / "seen" / entry.hex).read_text()[:32])
        except (OSError, ValueError):
            return None

    def saw(self, entry: Digest, sequence: int) -> None:
        """Remembers a sequence; a lower one than before changes nothing."""
        with self._writing(), self._locked("seen"):
            if sequence > (self.seen(entry) or 0):
                self._put("seen", entry.hex, str(sequence).encode())

    def distrust(self, entry: Digest, revision: Digest) -> None:
        """Marks the revision of an entry that is not to be installed on this node again."""
        with self._writing():
            self._put("distrusted", entry.hex, str(revision).encode())
            marks = sorted(self._files("distrusted"), key=lambda mark: mark[1].st_mtime)
            for path, _ in marks[:-_MAX_DISTRUSTED]:
                path.unlink(missing_ok=True)

    def distrusts(self, entry: Digest, revision: Digest) -> bool:
        """Whether this revision is the marked one of its entry."""
        try:
            return (self._base / "distrusted" / entry.hex).read_text()[:200] == str(revision)
        except (OSError, ValueError):
            return False

    def trust_again(self, entry: Digest) -> None:
        """Forgets the mark: another revision has taken the place of the marked one."""
        with contextlib.suppress(OSError):
            (self._base / "distrusted" / entry.hex).unlink(missing_ok=True)

    def remember_answer(self, key: Digest, answer: bytes) -> None:
        """Keeps a resolve's answer for the other processes that start now."""
        with self._writing():
            self._sweep("resolved", OUTAGE_SECONDS)
            self._put("resolved", key.hex, answer)

    def recent_answer(self, key: Digest, max_age: float = 5.0) -> bytes | None:
        """An answer at most ``max_age`` seconds old."""
        try:
            with open(self._base / "resolved" / key.hex, "rb") as file:
                age = time.time() - os.fstat(file.fileno()).st_mtime
                return file.read() if 0 <= age <= max_age else None
        except OSError:
            return None

    def folder(self, name: Digest) -> Path:
        """Opens the private cache folder of this name: 0700, ours, and kept while this process lives.

        The first process that uses a folder empties it; processes that come while it is in use share it. So
        what was put there while no process used it is gone before a compiler can open it. Raises
        ``Untrusted`` if somebody else could write there.
        """
        path = self._base / "folders" / name.hex
        with self._writing(), self._locked(f"folder-{name.hex}"):
            while path not in self._held:
                handle = self._empty_unless_used(path)
                if handle is None:
                    handle = os.open(path, _FOLDER)
                os.utime(handle)
                fcntl.flock(handle, fcntl.LOCK_SH)
                # It may have been evicted between open and lock; then nobody else sees it.
                if _same_file(handle, path):
                    self._held[path] = handle
                else:
                    os.close(handle)
            _refuse_foreign(path)
        return path

    def own_folder(self, purpose: str) -> Path:
        """Opens an empty private folder that no other process gets while this one lives. Raises as
        `folder` does."""
        for number in range(_MOST_OWN_FOLDERS):
            name = Digest.of(f"{purpose} {number}".encode())
            path = self._base / "folders" / name.hex
            with self._writing(), self._locked(f"folder-{name.hex}"):
                handle = self._empty_unless_used(path)
                if handle is not None:
                    self._held[path] = handle
                    os.utime(handle)
                    return path
        raise StorageFull(f"node store {self.root}: {_MOST_OWN_FOLDERS} folders for {purpose} are in use")

    def leave(self, path: Path) -> None:
        """Ends this process's use of a folder, in which it neither read nor wrote anything."""
        handle = self._held.pop(path, None)
        if handle is not None:
            os.close(handle)

    def _empty_unless_used(self, path: Path) -> int | None:
        """Opens and locks the folder, emptied, or made; ``None`` if a process uses it."""
        path.mkdir(mode=0o700, exist_ok=True)
        _refuse_foreign(path)
        handle = os.open(path, _FOLDER)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if not os.listdir(handle):
            return handle
        # Moved in one step: a process that is killed here leaves an empty folder, or none.
        gone = self._base / "tmp" / secrets.token_hex(8)
        os.rename(path, gone)
        os.close(handle)
        self._step("moved aside")
        path.mkdir(mode=0o700)
        handle = os.open(path, _FOLDER)
        fcntl.flock(handle, fcntl.LOCK_EX)
        _remove(gone)
        return handle

    def own_results(self, folder: Digest) -> Path:
        """Where what was compiled in a private folder is kept, for the next process that uses it."""
        return self._base / "own" / f"{folder.hex}.cachesvc"

    def job(self, key: Digest) -> Path:
        """Where the ranks of a job meet. It is removed a day after it was last changed."""
        path = self._base / "jobs" / key.hex
        with self._writing():
            path.mkdir(mode=0o700, exist_ok=True)
        return path

    def evict(self, keep: Digest | None = None) -> None:
        """Removes the packs that were used longest ago until the rest fits, private folders and own results
        unused for 30 days, and leftovers of a day. Never ``keep``, nor what is in use. Never raises."""
        with contextlib.suppress(OSError, StorageFull), self._locked("evict", wait=False):
            for part in ("partial", "tmp", "locks", "jobs"):
                self._sweep(part, _LEFTOVER_SECONDS)
            self._evict_packs(keep)
            self._sweep("own", _FOLDER_SECONDS)
            for path in self._older("folders", _FOLDER_SECONDS):
                self._remove_unless_used(path)

    def _download(
        self, digest: Digest, size: int, download: Download, watcher: Watcher | None
    ) -> tuple[Path, int]:
        partial = self._base / "partial" / digest.hex
        try:
            moved, intact = self._receive(partial, digest, size, download, watcher)
            if not intact and moved < size:
                # What a killed process left was not the pack's beginning: once more, from the start.
                partial.unlink()
                again, intact = self._receive(partial, digest, size, download, None)
                moved += again
        except OSError as error:
            if error.errno in _FULL:  # on a full disk half a pack only takes room
                partial.unlink(missing_ok=True)
            raise
        if not intact:
            partial.unlink()
            raise Corrupt(f"pack {digest}: what was downloaded is not this pack ({moved} bytes moved)")
        path = self._base / "packs" / digest.hex
        os.replace(partial, path)
        self._step("renamed")
        return path, moved

    def _receive(
        self, partial: Path, digest: Digest, size: int, download: Download, watcher: Watcher | None
    ) -> tuple[int, bool]:
        """(bytes moved, whether the whole is the pack). Goes on where the partial file ends."""
        with open(partial, "ab+", buffering=0) as file:
            self._step("opened")
            have = os.fstat(file.fileno()).st_size
            if have > size:
                file.truncate(0)
                have = 0
            moved = 0
            for chunk in _received(download, have) if have < size else ():
                moved += len(chunk)
                if have + moved > size:
                    return moved, False
                _write_all(file.fileno(), chunk)
                self._step("chunk")
                if watcher is not None:
                    watcher.arrived(partial, have + moved)
            if have + moved < size:
                raise Unavailable(f"pack {digest}: the download ended at {have + moved} of {size} bytes")
            self._step("downloaded")
            if watcher is not None and watcher.whole():
                return moved, True
            file.seek(0)
            return moved, Digest.of_chunks(iter(lambda: file.read(1 << 20), b"")) == digest

    def _evict_packs(self, keep: Digest | None) -> None:
        packs = sorted((status.st_mtime, status.st_size, path) for path, status in self._files("packs"))
        excess = sum(size for _, size, _ in packs) - self.max_bytes
        for used, size, path in packs:
            if excess <= 0 or used > time.time() - _JUST_USED_SECONDS:
                return
            if (keep is None or path.name != keep.hex) and self._remove_unless_used(path):
                excess -= size

    def _remove_unless_used(self, path: Path) -> bool:
        """Takes the exclusive lock that readers of a pack and users of a folder hold shared."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = self._base / "tmp" / secrets.token_hex(8)
            os.rename(path, gone)
        except OSError:
            return False
        finally:
            os.close(handle)
        _remove(gone)
        return True

    def _sweep(self, part: str, seconds: float) -> None:
        """Removes what was last changed that long ago. A lock that is held stays."""
        for path in self._older(part, seconds):
            if part == "locks":
                self._remove_unless_used(path)
            else:
                _remove(path)

    def _older(self, part: str, seconds: float) -> list[Path]:
        before = time.time() - seconds
        return [path for path, status in self._files(part) if status.st_mtime < before]

    def _files(self, part: str) -> Iterator[tuple[Path, os.stat_result]]:
        for path in (self._base / part).iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process evicts too
                yield path, path.lstat()

    def _put(self, part: str, name: str, data: bytes) -> None:
        temporary = self._base / "tmp" / secrets.token_hex(8)
        temporary.write_bytes(data)
        os.replace(temporary, self._base / part / name)

    @contextmanager
    def _locked(self, name: str, wait: bool = True) -> Iterator[None]:
        """Holds ``locks/<name>``. Ends with the process, however it ends. With ``wait=False`` raises
        ``BlockingIOError``."""
        path = self._base / "locks" / name
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                # The file may have been swept between open and lock; then the lock guards nothing.
                if _same_file(handle, path):
                    os.utime(handle)
                    yield
                    return
            finally:
                os.close(handle)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns what the file system refuses into one clear line."""
        try:
            yield
        except OSError as error:
            raise StorageFull(
                f"node store {self.root}: {error.strerror or error}",
                "free some room" if error.errno in _FULL else "set CACHESVC_STORE to a writable folder",
            ) from error


def _received(download: Download, offset: int) -> Iterator[bytes]:
    """Keeps the network's errors apart from the disk's."""
    try:
        yield from download(offset)
    except OSError as error:
        raise Unavailable(f"download: {error}") from error


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _refuse_foreign(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise Untrusted(f"node store: {path} is not a folder")
    if status.st_uid != os.geteuid():
        raise Untrusted(f"node store: {path} belongs to user {status.st_uid}", "set CACHESVC_STORE")
    if status.st_mode & 0o022:
        raise Untrusted(f"node store: others may write to {path}", f"chmod go-w {path}")


def _usable(root: Path) -> bool:
    """Ours, or to be made by us; the usual place under TMPDIR could be laid out by anyone."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(root)
    except (OSError, Untrusted):
        return False
    return os.access(root, os.W_OK | os.X_OK)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
