"""Owns `CompileWait`: how the calls of this process wait for one session, within its deadline.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from ..hooks import logger
from ..ranks.deadline import Deadline

if TYPE_CHECKING:
    from ..process.process import Process
    from .eager_calls import EagerCalls
    from .session import Session

_LONGEST_CONFIGURE = 10.0
"""Seconds that a compile waits, at most, for the thread to read the configuration and in it the deadline."""


class CompileWait:
    """The one bounded wait for a session: a compile waits, or calls run eagerly for now."""

    def __init__(self, session: Session, process: Process) -> None:
        self._session, self._process = session, process
        self.deadline = Deadline()
        self.configured = threading.Event()
        """Set once the configuration, and in it the deadline, is known or cannot be read."""
        self.over = False
        """Whether a compile has ended its wait for this session. From then on nothing is installed."""
        self.eager: EagerCalls | None = None
        """The calls that run without a compile; ``None`` where none was to."""
        self._began: float | None = None
        """When a call began to wait for the restore (``time.perf_counter``) that was not over in time."""

    def begin_again(self, configured: bool) -> None:
        """Replace what threads of the parent wait for in a forked child."""
        self.configured = threading.Event()
        if configured:
            self.configured.set()
        self.deadline.begin_again()

    def seconds_left(self, begin: float) -> float:
        """Return what is left of a deadline that began at ``begin``, once the configuration was read."""
        self.configured.wait(_LONGEST_CONFIGURE)
        config = self._session.config
        return max(0.0, begin + (config.deadline if config else 0.0) - time.perf_counter())

    def begin_compile(self, begin: float) -> None:
        """Start the deadline at ``begin`` (``time.perf_counter``), and the threads that are not running."""
        self.deadline.begin(begin)
        self._session.ensure_running()
        self._session.begin_claim()

    def wait_for_compile(self, begin: float) -> None:
        """Wait for the restore, at most the deadline, which counts from ``begin``, or from when a call began
        to wait for it."""
        session, begin = self._session, begin if self._began is None else min(begin, self._began)

        def over() -> bool:
            return session.attempt.wait(self.seconds_left(begin))

        # A restore that ended during this wait may have missed: then the claim comes now.
        if not over() or (session.begin_claim() and not over()):
            text = "%s: not restored after %.1f s, this process compiles"
            logger.write(logging.WARNING, text, session.label, self.deadline.seconds or 0.0)
            if session.restoring is not None:
                session.restoring.compile_goes_on()
        self.over = True

    def runs_eagerly(self) -> bool:
        """Wait for the restore, at most the deadline; return whether calls run without a compile for now.

        They do from a restore that missed until the revision is installed, or nobody else compiles. The ranks
        of a job wait instead: they hit together. Raises nothing.
        """
        if self.over or (self.eager is not None and self.eager.over):
            return False
        self._session.ensure_running()
        if self.eager is None and not self._begin_eagerly():
            return False
        assert self.eager is not None
        if self._session.claims_now:
            self.eager.count()
            return True
        self.eager.end(restored=self._session.has_revisions)
        return False

    def _begin_eagerly(self) -> bool:
        """Wait for the restore; return whether it missed something that another process may compile."""
        from ..ranks.job import this_job
        from .eager_calls import EagerCalls

        session, begin = self._session, time.perf_counter()
        self.deadline.awaited.set()
        over = session.restore_attempt.wait(self.seconds_left(begin))
        self._process.output.seconds["wait"] += time.perf_counter() - begin
        if not over:
            self._began = begin
        if not over or session.config is None or session.config.wait != "eager" or this_job() is not None:
            return False
        with self._process.lock:
            self.eager = self.eager or EagerCalls(session.label, self._process.output.seconds)
        session.begin_claim()
        return True

    def explain(self) -> None:
        """Say why a compile waits although calls were to run eagerly, if that is so."""
        config = self._session.config
        if config is not None and config.wait == "eager" and self.eager is None:
            from .eager_calls import explain_wait

            explain_wait(self._session.label, (state.not_eager() for state in self._process.kinds.values()))

    def patience(self) -> float:
        """Return the seconds that the session may still wait for another process that compiles."""
        from ..ranks.job import this_job

        if self.over:
            return 0.0
        if self.eager is not None and not self.deadline.began:
            return self.eager.patience
        return self.deadline.for_claim(alone=this_job() is None)
