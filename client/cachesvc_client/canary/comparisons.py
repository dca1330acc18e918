"""Owns the thread on which kept calls are compared, and its bounds: room, time, fork and exit.

The thread lives only as long as comparisons wait. It begins when no new graph was called for half a second,
so that the first request of a service has the machine for itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

_log = logging.getLogger("cachesvc")

MOST_KEPT = 256 << 20
"""Bytes of copies that wait for their comparison, at most, in the whole process."""
SETTLE_SECONDS = 0.5
"""Seconds without a new comparison after which the thread begins."""
MOST_SETTLE_SECONDS = 10.0
"""Seconds after which it begins in any case."""
MOST_SECONDS = 30.0
"""Seconds for one comparison, at most."""
EXIT_SECONDS = 1.0
"""Seconds for all that wait when the process ends."""
_LAST_OPERATOR_SECONDS = 10.0
"""Seconds that an exit waits for the operator that runs, at most: Python must not end below it."""
_FORK_SECONDS = 1.0
"""Seconds that a fork waits for the operator that runs, at most."""


class Room:
    """Counts the bytes that are kept."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._left = most
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Reserve bytes; return whether there is room for them."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        """Free bytes that were reserved."""
        with self._lock:
            self._left += size


class OutOfTime(Exception):
    """Says that a comparison has no time left."""


class Comparison(Protocol):
    """What waits to be compared."""

    def run(self, check: Callable[[], None], gate: contextlib.AbstractContextManager[Any]) -> None:
        """Compare. Call ``check`` often, which may raise `OutOfTime`; hold ``gate`` while operators run."""

    def skip(self, why: str) -> None:
        """Drop what was kept: nothing is compared."""


class Comparisons:
    """Runs comparisons one after the other on a thread of its own. ``room``: for what they keep."""

    def __init__(self) -> None:
        self._follows_process = False
        self._begin()

    def _begin(self) -> None:
        self.room = Room()
        self._waiting: deque[Comparison] = deque()
        self._changed = threading.Condition()
        self._gate = threading.Lock()
        self._fork_holds_gate = False
        self._thread: threading.Thread | None = None
        self._first = self._last = 0.0
        self._exit_deadline: float | None = None

    def add(self, comparison: Comparison) -> None:
        """Have something compared later. Never raises: without a thread it is skipped."""
        try:
            with self._changed:
                if self._exit_deadline is not None:
                    raise RuntimeError("the process ends")
                self._follow_process()
                self._last = time.monotonic()
                if self._thread is None:
                    self._first = self._last
                    self._thread = threading.Thread(target=self._run, name="cachesvc-canary", daemon=True)
                    self._thread.start()
                self._waiting.append(comparison)
        except RuntimeError as error:  # no more threads, or the process ends
            comparison.skip(str(error))

    def finish(self, seconds: float) -> None:
        """Run what waits now, for at most ``seconds``, and skip the rest."""
        with self._changed:
            self._exit_deadline = time.monotonic() + seconds
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(seconds + _LAST_OPERATOR_SECONDS)

    def _follow_process(self) -> None:
        if self._follows_process:
            return
        self._follows_process = True
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._begin
        )
        # Children of multiprocessing skip the functions of atexit.
        for register in (atexit.register, getattr(threading, "_register_atexit", None)):
            if register is not None:
                register(self._finish_at_exit)

    def _finish_at_exit(self) -> None:
        with contextlib.suppress(Exception):
            self.finish(EXIT_SECONDS)

    def _before_fork(self) -> None:
        """Let no operator run while the process forks: the child would find its locks taken."""
        self._fork_holds_gate = self._gate.acquire(timeout=_FORK_SECONDS)

    def _after_fork(self) -> None:
        if self._fork_holds_gate:
            self._fork_holds_gate = False
            self._gate.release()

    def _run(self) -> None:
        while (comparison := self._next()) is not None:
            began = time.monotonic()
            try:
                comparison.run(functools.partial(self._check, began), self._gate)
            except OutOfTime as reason:
                comparison.skip(str(reason))
            except Exception as error:  # noqa: BLE001 - a comparison that fails is no error of the service
                _log.debug("canary", exc_info=True)
                comparison.skip(f"{type(error).__name__}: {error}"[:200])

    def _next(self) -> Comparison | None:
        """Wait until the service is quiet; return the next comparison, ``None`` where none is left."""
        with self._changed:
            while self._exit_deadline is None:
                now = time.monotonic()
                begin = min(self._last + SETTLE_SECONDS, self._first + MOST_SETTLE_SECONDS)
                if now >= begin:
                    break
                self._changed.wait(begin - now)
            if not self._waiting:
                self._thread = None
                return None
            return self._waiting.popleft()

    def _check(self, began: float) -> None:
        """Raise `OutOfTime` where the comparison that began then has to end."""
        now = time.monotonic()
        if self._exit_deadline is not None and now > self._exit_deadline:
            raise OutOfTime("the process ended before it was compared")
        if now > began + MOST_SECONDS:
            raise OutOfTime(f"eager took longer than {MOST_SECONDS:.0f} s")
