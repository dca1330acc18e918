"""Writes the files of a pack beside their places while the pack still downloads.

The install that follows then only moves them to their places. Staging is an optimisation and nothing else:
the install reads every file that is not staged from the whole pack, with its own errors. A staged file came
from frames that had their signed digests, and no file is in its place before the pack is whole.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..bundle.layout import Layout
from ..bundle.pack import PackReader
from ..kinds.rules import KindRules
from ..wire.errors import CacheSvcError, NotFound
from ..wire.manifest.records import FileRecord, Manifest
from .install import InstallTask, installed_mode, plan_install, prepare_root
from .safe_files import FOLDER_FLAGS, PRIVATE, Step, Temporary, write_new_file

log = logging.getLogger("cachesvc")

_SMALL_PACK_BYTES = 8 << 20
"""Up to this many uncompressed bytes nothing is staged: a thread costs more than it saves."""
_FRAMES_AHEAD = 4
"""Number of unpacked frames that may wait for the writer."""
_STALL_SECONDS = 2.0
"""Seconds that the download waits for room for a frame. After that nothing more is staged: a slow folder must
not hold up the download."""


class Staging:
    """Stages the files of one pack. A context manager: its end removes the files that no install took.

    The thread that downloads hashes and unpacks frames as they complete; one more thread writes files. That
    divides the work about evenly, and more writers would wait for each other (measured on tmpfs). Memory:
    ``_FRAMES_AHEAD`` frames.
    """

    def __init__(
        self,
        manifest: Manifest,
        rules: Mapping[str, KindRules],
        roots: Callable[[], Mapping[str, Path]],
        *,
        may_go_on: Callable[[], bool] = lambda: True,
        step: Step = lambda _name: None,
    ) -> None:
        """Does nothing until the first bytes arrive; ``roots`` is asked then."""
        self._manifest = manifest
        self._rules = rules
        self._roots = roots
        self._may_go_on = may_go_on
        self._step = step
        self._off = sum(frame.raw for frame in manifest.frames) <= _SMALL_PACK_BYTES
        self._reader: PackReader | None = None
        self._frames: queue.Queue[bytes | None] = queue.Queue(_FRAMES_AHEAD)
        self._unpacked = 0
        self._writer: threading.Thread | None = None
        self._places: dict[Path, int] = {}
        self._name = f"{PRIVATE}/{secrets.token_hex(12)}"
        self._staged: dict[tuple[str, str], Temporary] = {}

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        for root, place in self._places.items():
            os.close(place)
            shutil.rmtree(root / self._name, ignore_errors=True)

    def receive(self, path: Path, size: int) -> None:
        """Unpacks the frames that are complete (see `Watcher`). Waits at most two seconds, once."""
        frames = self._manifest.frames
        try:
            while not self._off and self._unpacked < len(frames) and self._may_go_on():
                frame = frames[self._unpacked]
                if frame.offset + frame.size > size:
                    return
                self._reader = self._reader or self._begin(path)
                self._frames.put(self._reader.frame(self._unpacked), timeout=_STALL_SECONDS)
                self._unpacked += 1
        except (CacheSvcError, OSError, queue.Full) as error:
            self._stop(error)

    def is_whole(self) -> bool:
        """Returns whether every frame was checked (see `Watcher`). The frames lie back to back from the
        pack's magic, which was read, to its end (`Layout`)."""
        return 0 < self._unpacked == len(self._manifest.frames)

    def finish(self) -> Staging:
        """Waits for the files that are being written, and stages nothing more. Returns itself."""
        self._off = True
        if self._writer is not None:
            self._frames.put(None)
            self._writer.join()
            self._writer = None
        if self._reader is not None:
            self._reader.__exit__()
            self._reader = None
        return self

    def take(self, task: InstallTask) -> Temporary | None:
        """Hands over the staged file of a task, once."""
        return self._staged.pop((task.file.kind, task.file.path), None)

    def _begin(self, path: Path) -> PackReader:
        reader = PackReader(path, self._manifest)
        tasks = [
            task
            for task in plan_install(reader, self._rules, self._roots())
            if task.rule.write == "immutable" and task.rule.local is None
        ]
        self._writer = threading.Thread(
            target=self._write, args=(reader, tasks), name="cachesvc-staging", daemon=True
        )
        self._writer.start()
        return reader

    def _write(self, reader: PackReader, tasks: list[InstallTask]) -> None:
        stream = _Stream(reader.layout, self._frames)
        try:
            for task in tasks:
                if not self._may_go_on():
                    break
                if stream.has(task.file) and not os.path.lexists(task.root / task.file.path):
                    self._stage(task, stream)
        except (OSError, CacheSvcError) as error:
            self._stop(error)
        finally:
            stream.drain()

    def _stage(self, task: InstallTask, stream: _Stream) -> None:
        place, name = self._place(task.root), str(len(self._staged))
        size = write_new_file(place, name, installed_mode(task.file), stream.chunks(task.file), self._step)
        self._staged[task.file.kind, task.file.path] = Temporary(place, name, size)

    def _place(self, root: Path) -> int:
        if root not in self._places:
            prepare_root(root)
            os.mkdir(root / self._name, 0o700)
            self._places[root] = os.open(root / self._name, FOLDER_FLAGS)
        return self._places[root]

    def _stop(self, error: Exception) -> None:
        self._off = True
        log.debug("nothing more is staged: %s", error)


class _Stream:
    """Reads the frames of a pack as they come, each once; keeps only the last."""

    def __init__(self, layout: Layout, frames: queue.Queue[bytes | None]) -> None:
        self._layout = layout
        self._frames = frames
        self._at = -1
        self._raw: bytes | None = b""

    def has(self, file: FileRecord) -> bool:
        """Returns whether the file begins in this frame or in a later one: equal contents are stored once."""
        return all(index >= self._at for index, _, _ in self._layout.parts(file)[:1])

    def chunks(self, file: FileRecord) -> Iterator[memoryview]:
        """Yields the file's content in order. Raises ``NotFound`` if the frames end before the file does."""
        for index, begin, end in self._layout.parts(file):
            while self._at < index and self._raw is not None:
                self._raw = self._frames.get()
                self._at += 1
            if self._raw is None:
                raise NotFound(f"frame {index}: it did not arrive")
            yield memoryview(self._raw)[begin:end]

    def drain(self) -> None:
        """Drops the frames that still come, so that the download does not wait for room."""
        while self._raw is not None:
            self._raw = self._frames.get()
