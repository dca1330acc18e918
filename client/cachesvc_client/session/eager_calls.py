"""Owns `EagerCalls`: the calls of a session that run as Python while another process compiles.

Only a session with CACHESVC_WAIT=eager has one. Which calls these are is decided by the hooks of a kind; this
module counts them and says in the log when they begin and end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, MutableMapping

from ..ranks.job import this_job

_log = logging.getLogger("cachesvc")

MOST_SECONDS = 1800.0
"""Seconds for which calls run eagerly, at most: for as long as a service may have a claim. After that this
process compiles."""


class EagerCalls:
    """Counts the calls that ran eagerly, from the first one until the compile may begin."""

    def __init__(self, label: str, seconds: MutableMapping[str, float]) -> None:
        """``seconds``: where the end adds those in which calls ran eagerly."""
        self.calls = 0
        """How many frames ran eagerly. Threads that count at once may lose one."""
        self.over = False
        """Whether calls compile from now on."""
        self._label, self._spent = label, seconds
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Return the seconds since the restore missed."""
        return time.perf_counter() - self._began

    @property
    def patience(self) -> float:
        """Return the seconds for which calls may go on running eagerly."""
        return 0.0 if self.over else max(0.0, MOST_SECONDS - self.seconds)

    def count(self) -> None:
        """Count a call that runs eagerly."""
        if not self.calls:
            text = (
                "%s: nothing fits yet: calls run eagerly until another process has published it, or this one"
            )
            _log.info(f"{text} is to compile", self._label)
        self.calls += 1

    def end(self, restored: bool) -> None:
        """Have calls compile from now on. ``restored``: whether what they need was published."""
        if self.over:
            return
        self.over = True
        if self.calls:
            then = "it was published and is used now" if restored else "this process compiles now"
            _log.info("%s: %d calls ran eagerly in %.1f s; %s", self._label, self.calls, self.seconds, then)
            self._spent["eager"] = self.seconds


def explain_wait(label: str, reasons: Iterable[str]) -> None:
    """Say why the compile of a session waits although its calls were to run eagerly.

    ``reasons``: why no call can run eagerly, of each kind; empty texts where there is no reason.
    """
    of_job = "a rank of a job" if this_job() is not None else ""
    reason = next(filter(None, (*reasons, of_job)), "Dynamo was not asked before it")
    _log.info("%s: the first compile waits, as without CACHESVC_WAIT=eager: %s", label, reason)
