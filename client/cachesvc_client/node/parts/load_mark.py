"""Owns the mark of this process in the node store: what it loads as code now.

Where a process crashes of what it loads, the signal writes words into its mark (`faulthandler`). The mark
stays, and no one has its lock: so the next process knows. One that was killed from outside, by the kernel
where memory ran out or by a signal that asks to end, leaves no such words, and says nothing about what it
loaded. Nor does one that was aborted while the program handled that signal: so Gunicorn ends a worker that is
slow to start.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...wire.digest import Digest
from ..store_files import StoreFiles, is_same_file

PART = "loading"
"""Name of the part of a store that has the marks."""
_MAX_BYTES = 20_000
"""Bytes that are read of a mark: about 120 revisions."""
_ASKS_TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which someone ends a process. Python itself handles SIGINT."""
_CRASHED = b"Fatal Python error: "
"""How the words of `faulthandler` begin where a process crashes, and not where a signal asks it to end."""
_HANDLES_ABORT = b"the program handles SIGABRT\n"
"""The first line of a mark whose process may be aborted by someone else."""


class LoadMark:
    """Marks what this process loads. Made with the first load; one write marks a load, and one its end."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._follows_process = False
        """Whether fork and exit of the process call this object."""
        self._listening: list[signal.Signals] = []
        """The signals that write into the mark now."""
        self._tells_crashes = False
        """Whether a crash writes into the mark now."""
        self._forget()

    def _forget(self) -> None:
        """Forgets the mark of the parent, in a forked child, which makes its own."""
        self._lock = threading.Lock()
        self._stop_listening()
        self._begun = False
        self._place: tuple[int, Path] | None = None
        """Handle and path of the mark; ``None`` if there is none, or no room for it."""
        self._under_way: dict[object, bytes] = {}
        """What is loaded now: the lines of each load."""

    @contextmanager
    def loading(self, revisions: Iterable[tuple[Digest, Digest]]) -> Iterator[None]:
        """Marks these revisions, each given with its entry, for the length of the block, and no longer where
        an exception ends it. Raises nothing: without room for a mark, nothing is marked."""
        load, text = object(), "".join(f"{entry} {revision}\n" for entry, revision in revisions)
        with self._lock:
            self._begin()
            self._under_way[load] = text.encode()
            self._write()
            self._listen()
        try:
            yield
        finally:
            with self._lock:
                if self._under_way.pop(load, None) is not None:
                    self._write()
                if not self._under_way:
                    self._stop_listening()

    def _begin(self) -> None:
        if not self._follows_process:
            self._follows_process = True
            os.register_at_fork(after_in_child=self._forget)
            atexit.register(self._end)
        if not self._begun:
            self._begun = True
            with contextlib.suppress(OSError):
                self._place = self._files.hold_new(PART)

    def _write(self) -> None:
        # A program may have closed all files of the process, and the number may be another file's by now.
        if self._place is not None and is_same_file(*self._place):
            with contextlib.suppress(OSError):
                os.ftruncate(self._place[0], 0)
                text = b"".join(self._under_way.values())
                if text and signal.getsignal(signal.SIGABRT) not in (signal.SIG_DFL, None):
                    text = _HANDLES_ABORT + text
                os.pwrite(self._place[0], text, 0)
                os.lseek(self._place[0], len(text), os.SEEK_SET)  # where a signal writes

    def _listen(self) -> None:
        """Has each signal that would end the process at once, and each crash, write into the mark first. A
        signal that the program handles or ignores ends nothing in the middle of a load. A program that has
        its crashes written into a file of its own keeps that: no one could give the file back."""
        if self._place is None or self._listening or not is_same_file(*self._place):
            return
        if not self._tells_crashes and not faulthandler.is_enabled():
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                faulthandler.enable(self._place[0], all_threads=False)
                self._tells_crashes = True
        for number in _ASKS_TO_END:
            if signal.getsignal(number) is signal.SIG_DFL and not _is_caught(number):
                with contextlib.suppress(OSError, RuntimeError, ValueError):
                    faulthandler.register(number, self._place[0], all_threads=False, chain=True)
                    self._listening.append(number)

    def _stop_listening(self) -> None:
        if self._tells_crashes:
            self._tells_crashes = False
            faulthandler.disable()
        while self._listening:
            faulthandler.unregister(self._listening.pop())

    def _end(self) -> None:
        """Removes the mark at the end of the process, which threads that still load do not survive."""
        with self._lock:
            self._under_way = {}
            self._stop_listening()
            self._write()
            place, self._place = self._place, None
        if place is not None:
            with contextlib.suppress(OSError):
                place[1].unlink(missing_ok=True)


def settle_left_behind(files: StoreFiles, crashed: Callable[[Digest, Digest], None]) -> None:
    """Calls ``crashed`` with each entry's revision that processes were loading when they crashed, and then
    removes the marks of all processes that have ended. Raises ``OSError``. The caller has a lock."""
    for path, said in files.left_behind(PART, _MAX_BYTES):
        for entry, revision in _crashed_of(said):
            crashed(entry, revision)
        path.unlink(missing_ok=True)


def _crashed_of(said: bytes) -> list[tuple[Digest, Digest]]:
    """Returns the entries and revisions that a mark names, if its process crashed. None if anything else is
    in it, such as what another signal wrote."""
    named, _, _ = said.partition(_CRASHED)
    _, found, why = said.rpartition(_CRASHED)
    if not found or (named.startswith(_HANDLES_ABORT) and why.startswith(b"Aborted")):
        return []
    try:
        text = named.removeprefix(_HANDLES_ABORT).decode("ascii")
        lines = [line.split() for line in text.splitlines()]
        return [(Digest(entry), Digest(revision)) for entry, revision in lines]
    except ValueError:
        return []


@functools.cache
def _is_caught(number: int) -> bool:
    """Returns whether C code handled a signal when this process loaded something for the first time, see
    proc(5). Python does not know of such a handler, which may be ``faulthandler``'s own."""
    try:
        caught = Path("/proc/self/status").read_text().partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        return True
