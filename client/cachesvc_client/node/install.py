"""Installs the files of a pack into the cache folders, and removes the files of a revision from them.

The inverse of `node.capture`. Each file is placed whole, see `node.safe_files`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from ..bundle.pack import PackReader
from ..kinds.rules import FileRule, KindRules
from ..wire.digest import Digest
from ..wire.errors import Corrupt, StorageFull, Untrusted
from ..wire.manifest.records import FileRecord, Manifest
from .safe_files import (
    PRIVATE,
    OpenFolders,
    Step,
    Temporary,
    has_content,
    merge_lock,
    place_if_absent,
    read_file,
    replace_file,
    unlink_if_present,
    write_new_file,
)

log = logging.getLogger("cachesvc")
_LEFTOVER_SECONDS = 3600
"""Age in seconds from which temporary files of a killed process are removed."""
_SMALL_INSTALL_BYTES = 8 << 20
"""Up to this many bytes one thread installs: more threads cost more than they save."""
_TEMPORARY_NAME = "file"
"""Name of the one temporary file in the private folder of a worker."""


@dataclass(slots=True)
class InstallCounts:
    """Counts what an install did: files ``written``, ``kept`` (there already, whole), ``merged`` into the
    file that was there, ``skipped`` (their kind has no folder here); ``bytes`` written; wall ``seconds``."""

    written: int = 0
    kept: int = 0
    merged: int = 0
    skipped: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, other: InstallCounts) -> None:
        """Adds the counts of another worker or of another pack."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(frozen=True, slots=True)
class InstallTask:
    """Names one file that is to be installed below ``root``."""

    file: FileRecord
    rule: FileRule
    root: Path


class StagedFiles(Protocol):
    """Files that were written before the install, while the pack was downloaded (`node.staging`)."""

    def take(self, task: InstallTask) -> Temporary | None:
        """Hands over the file of a task; the caller removes it."""


def install(
    reader: PackReader,
    rules: Mapping[str, KindRules],
    roots: Mapping[str, Path],
    *,
    rank: int | None = None,
    threads: int | None = None,
    staged: StagedFiles | None = None,
    may_go_on: Callable[[], bool] = lambda: True,
    step: Step = lambda _name: None,
) -> InstallCounts:
    """Writes the pack's files into the folders of their kinds; for a ``rank`` those of all ranks and its own.

    Guarantees: nothing is written if any path matches no rule (``Corrupt``). An immutable file that exists
    is kept if it has the content that was verified, and is replaced otherwise. A merge file is joined with
    the file that exists, whose values win. A folder below a root that is a link is refused (``Untrusted``).
    An install that failed or was killed leaves whole files, and no ``last`` file whose companions are
    missing. Kinds without rules or root are skipped. Any number of processes may install the same pack at
    once. File modes are the records', less the umask; only a library is executable.
    ``threads``: default is one per core, at most 4. ``staged``: files that need only be moved to their
    places. ``may_go_on`` is asked before every file; once it says no, the rest is omitted and counted as
    skipped. ``step`` is for tests that kill the process at each step.
    Raises ``Corrupt``, ``Untrusted`` or ``StorageFull``.
    """
    began = time.perf_counter()
    tasks = [task for task in plan_install(reader, rules, roots) if serves_rank(task.file, rank)]
    counts = InstallCounts()
    for root in {task.root for task in tasks}:
        prepare_root(root)
    for last in (False, True):
        batch = [task for task in tasks if task.rule.last is last]
        for part in _install_in_parallel(reader, batch, threads, staged, may_go_on, step):
            counts.add(part)
    counts.skipped = len(reader.manifest.files) - counts.written - counts.kept - counts.merged
    counts.seconds = time.perf_counter() - began
    return counts


def plan_install(
    reader: PackReader, rules: Mapping[str, KindRules], roots: Mapping[str, Path]
) -> list[InstallTask]:
    """Lists the files that have a place here, in the order of the pack's stream. Raises ``Corrupt`` if a path
    matches no rule."""
    tasks = []
    for file in reader.manifest.files:
        kind, root = rules.get(file.kind), roots.get(file.kind)
        if kind is None or root is None:
            continue
        rule = kind.rule(file.path)
        if rule is None:
            raise Corrupt(f"manifest: {file.kind}/{file.path} is no file that this kind has")
        tasks.append(InstallTask(file, rule, root))
    tasks.sort(key=lambda task: reader.layout.start(task.file))
    return tasks


def serves_rank(file: FileRecord, rank: int | None) -> bool:
    """Returns whether a rank needs this file. A process alone (``None``) needs all files."""
    return rank is None or not file.ranks or rank in file.ranks


def installed_mode(file: FileRecord) -> int:
    """Return the mode of a file here: no compiler starts a file of its cache as a program."""
    return file.mode if file.path.endswith(".so") else 0o644


def prepare_root(root: Path) -> None:
    """Makes the root (which may be a user's link) and its private folder, and removes temporary files that
    are older than an hour."""
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
        raise _storage_full(root, error) from error


def _install_in_parallel(
    reader: PackReader,
    tasks: Sequence[InstallTask],
    threads: int | None,
    staged: StagedFiles | None,
    may_go_on: Callable[[], bool],
    step: Step,
) -> list[InstallCounts]:
    amount = sum(task.file.size for task in tasks)
    threads = threads or (min(4, len(os.sched_getaffinity(0))) if amount > _SMALL_INSTALL_BYTES else 1)
    stop = threading.Event()

    def work(part: Sequence[InstallTask]) -> InstallCounts:
        try:
            with _Writer(reader, staged, step) as writer:
                for task in part:
                    if stop.is_set() or not may_go_on():
                        break
                    writer.install(task)
                return writer.counts
        except BaseException:
            stop.set()
            raise

    if threads == 1:
        return [work(tasks)]
    with ThreadPoolExecutor(threads, thread_name_prefix="cachesvc-install") as pool:
        return list(pool.map(work, _split_by_bytes(tasks, amount, threads * 2)))


def _split_by_bytes(tasks: Sequence[InstallTask], amount: int, parts: int) -> list[list[InstallTask]]:
    """Splits tasks into contiguous runs of about equal bytes: then mostly one worker unpacks a frame."""
    before = itertools.accumulate((task.file.size for task in tasks), initial=0)
    keyed = [
        (position * parts // max(1, amount), task) for position, task in zip(before, tasks, strict=False)
    ]
    return [[task for _, task in run] for _, run in itertools.groupby(keyed, key=lambda pair: pair[0])]


class _Writer:
    """Installs the files of one worker. Has its own open folders, counts and, below each root, its own folder
    for temporary files: two threads that change one folder wait for each other in the kernel."""

    def __init__(self, reader: PackReader, staged: StagedFiles | None, step: Step) -> None:
        self._reader = reader
        self._staged = staged
        self._step = step
        self._folders = OpenFolders(create=True)
        # The name is random, since process ids are not unique: containers share volumes, and all are pid 1.
        self._private_name = f"{PRIVATE}/{secrets.token_hex(12)}"
        self._roots: set[Path] = set()
        self.counts = InstallCounts()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._folders.close()
        for root in self._roots:
            shutil.rmtree(root / self._private_name, ignore_errors=True)

    def install(self, task: InstallTask) -> None:
        """Installs one file as its rule says."""
        parent, _, name = task.file.path.rpartition("/")
        try:
            folder = self._folders.open(task.root, parent)
            if task.rule.write == "merge":
                self._merge(task, folder, name)
            elif task.rule.write == "ours":
                self._replace(task, folder, name)
            else:
                self._write(task, folder, name)
        except OSError as error:
            raise _storage_full(task.root / task.file.path, error) from error

    def _write(self, task: InstallTask, folder: int, name: str) -> None:
        local = None if task.rule.local is None else self._local_form(task)
        size, digest = (task.file.size, task.file.digest) if local is None else (len(local), Digest.of(local))
        ready = self._staged.take(task) if self._staged is not None else None
        if ready is not None:
            try:
                self._place(ready, folder, name, digest)
            finally:
                unlink_if_present(ready.folder, ready.name)
        elif has_content(name, folder, size, digest):
            self.counts.kept += 1
        else:
            chunks = self._reader.chunks(task.file) if local is None else [local]
            with self._temporary(task, chunks) as temporary:
                self._place(temporary, folder, name, digest)

    def _place(self, temporary: Temporary, folder: int, name: str, digest: Digest) -> None:
        """Gives a whole file its name. A file of that name stays only if it has the same content."""
        placed = place_if_absent(temporary, folder, name)
        if not placed and not has_content(name, folder, temporary.size, digest):
            replace_file(temporary, folder, name)
            placed = True
        if placed:
            self.counts.written += 1
            self.counts.bytes += temporary.size
        else:
            self.counts.kept += 1
        self._step("placed")

    def _replace(self, task: InstallTask, folder: int, name: str) -> None:
        """Replaces a file that only installs write if its bytes differ. Then it was damaged (a crash of the
        machine, a full disk), and a damaged shared object kills the process that loads it."""
        incoming = self._local_form(task)
        if read_file(name, folder) == incoming:
            self.counts.kept += 1
            return
        with self._temporary(task, [incoming]) as temporary:
            replace_file(temporary, folder, name)
            self._step("placed")
        self.counts.bytes += temporary.size
        self.counts.written += 1

    def _merge(self, task: InstallTask, folder: int, name: str) -> None:
        """Merges the file with the one that exists, under a lock: no install loses the lines of another.
        Compilers know no lock: a line that a compiler writes within these microseconds is tuned again."""
        incoming = self._local_form(task)
        with merge_lock(self._folders.open(task.root, PRIVATE)):
            existing = read_file(name, folder)
            merged = incoming if existing is None else _merge_contents(task, existing, incoming)
            if merged == existing:
                self.counts.kept += 1
                return
            with self._temporary(task, [merged]) as temporary:
                replace_file(temporary, folder, name)
                self._step("placed")
        self.counts.bytes += temporary.size
        if existing is None:
            self.counts.written += 1
        else:
            self.counts.merged += 1

    @contextmanager
    def _temporary(self, task: InstallTask, chunks: Iterable[bytes | memoryview]) -> Iterator[Temporary]:
        """Writes the whole file in this worker's private folder, and removes it at the end of the block."""
        self._roots.add(task.root)
        private = self._folders.open(task.root, self._private_name)
        try:
            size = write_new_file(private, _TEMPORARY_NAME, installed_mode(task.file), chunks, self._step)
            yield Temporary(private, _TEMPORARY_NAME, size)
        finally:
            unlink_if_present(private, _TEMPORARY_NAME)

    def _local_form(self, task: InstallTask) -> bytes:
        """Reads a file from the pack and rewrites it for this root."""
        data = self._reader.read(task.file)
        if task.rule.local is None:
            return data
        try:
            return task.rule.local(data, task.root)
        except Exception as error:  # noqa: BLE001 - of ours a ValueError; a kind may be somebody else's
            raise Corrupt(f"{task.file.kind}/{task.file.path}: {error}") from None


def _merge_contents(task: InstallTask, existing: bytes, incoming: bytes) -> bytes:
    """Joins two contents of a merge file; returns the existing one, with a warning, if that fails."""
    assert task.rule.merge is not None, f"{task.rule.pattern}: a merge rule without merge"
    try:
        return task.rule.merge(existing, incoming)
    except Exception as error:  # noqa: BLE001 - as above
        log.warning("%s: kept as it is, it cannot be merged: %s", task.root / task.file.path, error)
        return existing


def _storage_full(path: Path, error: OSError) -> StorageFull:
    return StorageFull(f"install: {path}: {error.strerror or error}", "what was installed so far is whole")


def remove(manifest: Manifest, rules: Mapping[str, KindRules], roots: Mapping[str, Path]) -> int:
    """Removes the files of a revision that have code from the folders, and returns how many.

    Merge files stay: they hold choices that were joined with those of others. A process that has a removed
    file open goes on with it. Follows no link. Never raises: a file that cannot be removed is logged.
    """
    folders, removed = OpenFolders(create=False), 0
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
