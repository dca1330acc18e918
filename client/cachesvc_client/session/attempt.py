"""Owns `Attempt`: one piece of a session's work, the thread that does it, and the event of its end.

A session has one attempt to restore. If that attempt misses and this process may publish, the session has a
second attempt, which claims the compilation or waits for the process that has the claim.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


class Attempt:
    """Run ``work`` on a daemon thread. The session starts the thread under the process's lock."""

    def __init__(self, work: Callable[[], None]) -> None:
        """``work`` must not raise."""
        self._work = work
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def over(self) -> bool:
        """Return whether the work has ended, in whatever way."""
        return self._over.is_set()

    @property
    def running_or_over(self) -> bool:
        """Return whether there is no need to start the thread."""
        return self.over or (self._thread is not None and self._thread.is_alive())

    def start(self) -> None:
        """Start the thread."""
        run = self._run
        if "opentelemetry.trace" in sys.modules:  # the program's trace goes on in the thread
            from .. import spans

            run = spans.in_restore(run)
        self._thread = threading.Thread(target=run, name="cachesvc-restore", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None) -> bool:
        """Wait for the end of the work, ``timeout`` seconds at most; return whether the work has ended."""
        return self._over.wait(timeout)

    def end(self) -> None:
        """Mark the work as ended: for a session that has nothing to restore."""
        self._over.set()

    def begin_again(self) -> None:
        """Forget the parent's thread in a forked child: work that had not ended can be started again."""
        over = self.over
        self._over, self._thread = threading.Event(), None
        if over:
            self._over.set()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._over.set()
