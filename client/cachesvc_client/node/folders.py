"""Cache folders: capture and install, one inverse pair.

A cache folder sees whole files only: each is written in ``<root>/.cachesvc`` (on the same file system)
and linked or renamed to its place. Compilers write there at the same time, other processes install at
the same time, and any of them may be killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import secrets
import shutil
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple, Protocol

from ..bundle.pack import PackReader, SourceFile
from ..kinds.rules import FileRule, KindRules
from ..wire.digest import Digest
from ..wire.errors import Corrupt, StorageFull, Untrusted
from ..wire.records import FileRecord, Manifest

log = logging.getLogger("cachesvc")

PRIVATE = ".cachesvc"
"""Under each root: temporary files, and the lock for merges. No kind's rule matches it."""
_LEFTOVER_SECONDS = 3600
_OPEN_FOLDERS = 64
_SMALL_INSTALL = 8 << 20
_CAPTURE_TRIES = 5
_TEMPORARY = "file"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}

Step = Callable[[str], None]


@dataclass(slots=True)
class InstallCounts:
    """What an install did: files ``written``, ``kept`` (there already, whole), ``merged`` into what
    was there, ``skipped`` (their kind has no folder here); ``bytes`` written; wall ``seconds``."""

    written: int = 0
    kept: int = 0
    merged: int = 0
    skipped: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, other: InstallCounts) -> None:
        """Adds up what several workers, or several packs, did."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(frozen=True, slots=True)
class InstallTask:
    """One file to be installed below ``root``."""

    file: FileRecord
    rule: FileRule
    root: Path


class Temporary(NamedTuple):
    """A whole file of ``size`` bytes in a private folder (a handle), not yet in its place."""

    folder: int
    name: str
    size: int


class Staged(Protocol):
    """Files that were written before the install, while the pack came (`node.staging`)."""

    def take(self, job: InstallTask) -> Temporary | None:
        """The file of a job; from then on the caller's to remove."""


def install(
    reader: PackReader,
    rules: Mapping[str, KindRules],
    roots: Mapping[str, Path],
    *,
    rank: int | None = None,
    threads: int | None = None,
    staged: Staged | None = None,
    may_go_on: Callable[[], bool] = lambda: True,
    step: Step = lambda _name: None,
) -> InstallCounts:
    """Writes the pack's files into the folders of their kinds; for a ``rank`` those of all ranks and its own.

    Guarantees: nothing is written if any path matches no rule (``Corrupt``); an immutable file that exists is
    kept if it has the content that was verified, and is replaced otherwise; merge files are joined, what is
    there wins; a folder below a root that is a link is refused (``Untrusted``); what a failed or killed
    install left is whole files, and no ``last`` file whose companions are missing. Kinds without rules or
    root are skipped. Any number of processes may install the same at once. File modes are the records',
    less the umask.
    ``threads``: default is one per core, at most 4. ``staged``: files that need only be moved to their
    places. ``may_go_on`` is asked before every file; once it says no, the rest is left out and counted as
    skipped. ``step`` is for tests that kill at each step.
    Raises ``Corrupt``, ``Untrusted`` or ``StorageFull``.
    """
    began = time.perf_counter()
    jobs = [job for job in plan(reader, rules, roots) if serves_rank(job.file, rank)]
    done = InstallCounts()
    for root in {job.root for job in jobs}:
        prepare(root)
    for last in (False, True):
        wave = [job for job in jobs if job.rule.last is last]
        for part in _in_parallel(reader, wave, threads, staged, may_go_on, step):
            done.add(part)
    done.skipped = len(reader.manifest.files) - done.written - done.kept - done.merged
    done.seconds = time.perf_counter() - began
    return done


def plan(reader: PackReader, rules: Mapping[str, KindRules], roots: Mapping[str, Path]) -> list[InstallTask]:
    """Jobs in the order of the pack's stream."""
    jobs = []
    for file in reader.manifest.files:
        kind, root = rules.get(file.kind), roots.get(file.kind)
        if kind is None or root is None:
            continue
        rule = kind.rule(file.path)
        if rule is None:
            raise Corrupt(f"manifest: {file.kind}/{file.path} is no file that this kind has")
        jobs.append(InstallTask(file, rule, root))
    jobs.sort(key=lambda job: reader.layout.start(job.file))
    return jobs


def serves_rank(file: FileRecord, rank: int | None) -> bool:
    return rank is None or not file.ranks or rank in file.ranks


def prepare(root: Path) -> None:
    """The root (which may be a user's link) and its private folder, without leftovers of an hour."""
    private = root / PRIVATE
    try:
        root.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            private.mkdir(mode=0o700)
        if not stat.S_ISDIR(private.lstat().st_mode):
            raise Untrusted(f"{private}: not a folder", "remove it")
        before = time.time() - _LEFTOVER_SECONDS
        for entry in os.scandir(private):
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False) and entry.stat().st_mtime < before:
                    shutil.rmtree(entry.path, ignore_errors=True)
    except OSError as error:
        raise _refused(root, error) from error


def _in_parallel(
    reader: PackReader,
    jobs: Sequence[InstallTask],
    threads: int | None,
    staged: Staged | None,
    may_go_on: Callable[[], bool],
    step: Step,
) -> list[InstallCounts]:
    amount = sum(job.file.size for job in jobs)
    threads = threads or (min(4, len(os.sched_getaffinity(0))) if amount > _SMALL_INSTALL else 1)
    stop = threading.Event()

    def work(part: Sequence[InstallTask]) -> InstallCounts:
        try:
            with _Writer(reader, staged, step) as writer:
                for job in part:
                    if stop.is_set() or not may_go_on():
                        break
                    writer.install(job)
                return writer.done
        except BaseException:
            stop.set()
            raise

    if threads == 1:
        return [work(jobs)]
    with ThreadPoolExecutor(threads, thread_name_prefix="cachesvc-install") as pool:
        return list(pool.map(work, _runs(jobs, amount, threads * 2)))


def _runs(jobs: Sequence[InstallTask], amount: int, parts: int) -> list[list[InstallTask]]:
    """Contiguous runs of about equal bytes: a frame is then unpacked by one worker, seldom by two."""
    before = itertools.accumulate((job.file.size for job in jobs), initial=0)
    keyed = [(position * parts // max(1, amount), job) for position, job in zip(before, jobs, strict=False)]
    return [[job for _, job in run] for _, run in itertools.groupby(keyed, key=lambda pair: pair[0])]


class _Writer:
    """One worker: its open folders, its counts and, below each root, its own place for temporary files
    (two threads that create and unlink in one folder wait for each other in the kernel)."""

    def __init__(self, reader: PackReader, staged: Staged | None, step: Step) -> None:
        self._reader = reader
        self._staged = staged
        self._step = step
        self._folders = _Folders(create=True)
        # Random, for no other name is unique: containers share volumes, and all are pid 1.
        self._place = f"{PRIVATE}/{secrets.token_hex(12)}"
        self._roots: set[Path] = set()
        self.done = InstallCounts()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._folders.close()
        for root in self._roots:
            shutil.rmtree(root / self._place, ignore_errors=True)

    def install(self, job: InstallTask) -> None:
        """One file, by its rule."""
        parent, _, name = job.file.path.rpartition("/")
        try:
            folder = self._folders.open(job.root, parent)
            if job.rule.write == "merge":
                self._merge(job, folder, name)
            elif job.rule.write == "ours":
                self._replace(job, folder, name)
            else:
                self._write(job, folder, name)
        except OSError as error:
            raise _refused(job.root / job.file.path, error) from error

    def _write(self, job: InstallTask, folder: int, name: str) -> None:
        local = None if job.rule.local is None else self._local(job)
        size, digest = (job.file.size, job.file.digest) if local is None else (len(local), Digest.of(local))
        ready = self._staged.take(job) if self._staged is not None else None
        if ready is not None:
            try:
                self._put(ready, folder, name, digest)
            finally:
                _unlink(ready.folder, ready.name)
        elif _has_content(name, folder, size, digest):
            self.done.kept += 1
        else:
            chunks = self._reader.chunks(job.file) if local is None else [local]
            with self._temporary(job, chunks) as temporary:
                self._put(temporary, folder, name, digest)

    def _put(self, temporary: Temporary, folder: int, name: str, digest: Digest) -> None:
        """Gives a whole file its name. A file of that name stays only if it has the same content."""
        placed = _link(temporary, folder, name)
        if not placed and not _has_content(name, folder, temporary.size, digest):
            _rename(temporary, folder, name)
            placed = True
        if placed:
            self.done.written += 1
            self.done.bytes += temporary.size
        else:
            self.done.kept += 1
        self._step("placed")

    def _replace(self, job: InstallTask, folder: int, name: str) -> None:
        """A file that only installs write: one with other bytes was damaged (a crash of the machine, a full
        disk), and a damaged shared object kills the process that loads it."""
        incoming = self._local(job)
        if _read(name, folder) == incoming:
            self.done.kept += 1
            return
        with self._temporary(job, [incoming]) as temporary:
            _rename(temporary, folder, name)
            self._step("placed")
        self.done.bytes += temporary.size
        self.done.written += 1

    def _merge(self, job: InstallTask, folder: int, name: str) -> None:
        """Under a lock, so that no install loses another's lines. Compilers know no lock: a line that one
        writes within these microseconds is tuned again."""
        incoming = self._local(job)
        with _lock(self._folders.open(job.root, PRIVATE)):
            there = _read(name, folder)
            joined = incoming if there is None else _joined(job, there, incoming)
            if joined == there:
                self.done.kept += 1
                return
            with self._temporary(job, [joined]) as temporary:
                _rename(temporary, folder, name)
                self._step("placed")
        self.done.bytes += temporary.size
        if there is None:
            self.done.written += 1
        else:
            self.done.merged += 1

    @contextmanager
    def _temporary(self, job: InstallTask, chunks: Iterable[bytes | memoryview]) -> Iterator[Temporary]:
        """The whole file in this worker's private folder; gone at the end."""
        self._roots.add(job.root)
        private = self._folders.open(job.root, self._place)
        try:
            size = fill(private, _TEMPORARY, job.file.mode, chunks, self._step)
            yield Temporary(private, _TEMPORARY, size)
        finally:
            _unlink(private, _TEMPORARY)

    def _local(self, job: InstallTask) -> bytes:
        data = self._reader.read(job.file)
        if job.rule.local is None:
            return data
        try:
            return job.rule.local(data, job.root)
        except ValueError as error:
            raise Corrupt(f"{job.file.kind}/{job.file.path}: {error}") from None


def fill(
    folder: int, name: str, mode: int, chunks: Iterable[bytes | memoryview], step: Step = lambda _name: None
) -> int:
    """Makes a new file; its size. Raises ``OSError``, and what ``chunks`` raises: then it is not whole."""
    handle = os.open(name, _NEW, mode, dir_fd=folder)
    size = 0
    try:
        step("created")
        for chunk in chunks:
            size += len(chunk)
            written = os.write(handle, chunk)
            while written < len(chunk):
                written += os.write(handle, chunk[written:])
    finally:
        os.close(handle)
    step("filled")
    return size


class _Folders:
    """Open folders below roots, the most recent 64. No link below a root is followed."""

    def __init__(self, create: bool) -> None:
        self._create = create
        self._open: OrderedDict[tuple[Path, str], int] = OrderedDict()

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def open(self, root: Path, folder: str) -> int:
        """A handle, good until 64 others were opened. Raises ``OSError``, ``Untrusted`` for a link."""
        key = (root, folder)
        handle = self._open.get(key)
        if handle is None:
            handle = self._open[key] = self._walk(root, folder)
            if len(self._open) > _OPEN_FOLDERS:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(key)
        return handle

    def _walk(self, root: Path, folder: str) -> int:
        if not folder:
            return os.open(root, FOLDER & ~os.O_NOFOLLOW)
        above, _, part = folder.rpartition("/")
        parent = self.open(root, above)
        try:
            return self._enter(parent, part)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Untrusted(f"{root / folder}: {part} is a link, or no folder", "remove it") from None
            raise

    def _enter(self, handle: int, part: str) -> int:
        try:
            return os.open(part, FOLDER, dir_fd=handle)
        except FileNotFoundError:
            if not self._create:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=handle)
        return os.open(part, FOLDER, dir_fd=handle)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _has_content(name: str, folder: int, size: int, digest: Digest) -> bool:
    """Whether there is a regular file with this content. A link never has it."""
    try:
        handle = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        return Digest.of_chunks(iter(lambda: file.read(1 << 20), b"")) == digest


def _link(temporary: Temporary, folder: int, name: str) -> bool:
    """Gives the whole file its name; false if there is one already. ``link`` never replaces."""
    try:
        os.link(temporary.name, name, src_dir_fd=temporary.folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if _exists(name, folder):
            return False
        _rename(temporary, folder, name)
    return True


def _rename(temporary: Temporary, folder: int, name: str) -> None:
    os.rename(temporary.name, name, src_dir_fd=temporary.folder, dst_dir_fd=folder)


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


@contextmanager
def _lock(private: int) -> Iterator[None]:
    handle = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=private)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read(name: str, folder: int) -> bytes | None:
    """A merge file that is there. Raises ``OSError`` for a link or a folder in its place."""
    try:
        handle = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return _content(handle, status)
    finally:
        os.close(handle)


def _joined(job: InstallTask, there: bytes, incoming: bytes) -> bytes:
    assert job.rule.merge is not None, f"{job.rule.pattern.pattern}: a merge rule without merge"
    try:
        return job.rule.merge(there, incoming)
    except ValueError as error:
        log.warning("%s: kept as it is, it cannot be merged: %s", job.root / job.file.path, error)
        return there


def _refused(path: Path, error: OSError) -> StorageFull:
    return StorageFull(f"install: {path}: {error.strerror or error}", "what was installed so far is whole")


def remove(manifest: Manifest, rules: Mapping[str, KindRules], roots: Mapping[str, Path]) -> int:
    """Takes the files of a revision out of the folders again, and answers how many.

    Those that hold code: merge files hold choices that are joined with others', and stay. Whole files
    only, so that processes that have them open go on; links are not followed. Never raises: what cannot be
    removed is logged.
    """
    folders, removed = _Folders(create=False), 0
    try:
        for file in manifest.files:
            kind, root = rules.get(file.kind), roots.get(file.kind)
            rule = kind.rule(file.path) if kind is not None else None
            if root is None or rule is None or rule.write == "merge":
                continue
            parent, _, name = file.path.rpartition("/")
            try:
                os.unlink(name, dir_fd=folders.open(root, parent))
                removed += 1
            except FileNotFoundError:
                pass
            except (OSError, Untrusted) as error:
                log.warning("%s: not removed: %s", root / file.path, error)
    finally:
        folders.close()
    return removed


def capture(
    found: Mapping[str, Iterable[str]], rules: Mapping[str, KindRules], roots: Mapping[str, Path]
) -> list[SourceFile]:
    """Reads the named files (kind -> paths relative to its folder) in their portable form, sorted.

    The inverse of :func:`install`: what is installed elsewhere is what was captured, with the paths of
    that place. Left out: what no rule matches, links, what is no regular file, what vanishes, and (with
    a warning) what goes on changing. Contents are held in memory: compilers rewrite in place, so a
    path would not do. Raises ``StorageFull`` if a file may not be read.
    """
    folders = _Folders(create=False)
    made = []
    try:
        for kind in sorted(found.keys() & rules.keys() & roots.keys()):
            for path in sorted(set(found[kind])):
                rule = rules[kind].rule(path)
                if rule is not None and not {"", ".", ".."} & set(path.split("/")):
                    made.extend(_captured(folders, kind, path, rule, roots[kind]))
    finally:
        folders.close()
    return made


def listing(root: Path, rules: KindRules) -> set[str]:
    """The relative paths of all files under ``root`` that the kind knows; links are not followed."""
    found: set[str] = set()
    for folder, folders, names in os.walk(root):
        if PRIVATE in folders:
            folders.remove(PRIVATE)
        relative = os.path.relpath(folder, root)
        paths = (name if relative == "." else f"{relative}/{name}" for name in names)
        found.update(path for path in paths if rules.rule(path) is not None)
    return found


def _captured(folders: _Folders, kind: str, path: str, rule: FileRule, root: Path) -> list[SourceFile]:
    parent, _, name = path.rpartition("/")
    for _ in range(_CAPTURE_TRIES):
        try:
            read = _steady(folders.open(root, parent), name)
        except (FileNotFoundError, Untrusted):
            return []
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                return []
            raise StorageFull(f"capture: {root / path}: {error.strerror or error}") from error
        if read is not None:
            data, status = read
            if not stat.S_ISREG(status.st_mode):
                return []
            mode = 0o755 if status.st_mode & 0o111 else 0o644
            return [SourceFile(kind, path, rule.portable(data, root) if rule.portable else data, mode)]
        time.sleep(0.02)
    log.warning("%s: left out, it goes on changing while it is captured", root / path)
    return []


def _steady(folder: int, name: str) -> tuple[bytes, os.stat_result] | None:
    """The content and status of a file that did not change while it was read; no content if it is not a
    regular file."""
    handle = os.open(name, _READ, dir_fd=folder)
    try:
        before = os.fstat(handle)
        data = _content(handle, before)
        after = os.fstat(handle)
    finally:
        os.close(handle)
    same = before.st_mtime_ns == after.st_mtime_ns and before.st_size == after.st_size
    if same and (len(data) == before.st_size or not stat.S_ISREG(before.st_mode)):
        return data, before
    return None


def _content(handle: int, status: os.stat_result) -> bytes:
    if not stat.S_ISREG(status.st_mode):
        return b""
    with os.fdopen(handle, "rb", closefd=False) as file:
        return file.read()
