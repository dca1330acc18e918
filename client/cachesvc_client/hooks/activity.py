"""Watches what this process compiles, and calls listeners: after a compile, when it is quiet, and at exit.

Nothing but the standard library: `attach` pays for it on the application's own thread. Whoever wants to do
something when a process is quiet or ends (say the outcome, report it, keep what was compiled) adds a
listener to the one watch of the process, `session.Sessions.watch`.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

_log = logging.getLogger("cachesvc")

Moment = Literal["compiled", "quiet", "exit"]
"""Why a listener is called. *compiled*: something was compiled or loaded, and the compiler pauses. *quiet*:
nothing has happened for ``QUIET_SECONDS`` since. *exit*: this process ends."""
Listener = Callable[[Moment, float], None]
"""Takes the moment and the deadline for its work, a value of ``time.monotonic()``."""

PAUSE_SECONDS = 0.2
"""After a compile, before listeners are called. Doubled after each call, up to ``QUIET_SECONDS``."""
QUIET_SECONDS = 5.0
"""Without any compile, until the process counts as quiet. Also the time between two looks of a watch that has
nothing to wait for."""
WORK_SECONDS = 5.0
"""For the work of a listener while the process goes on."""
EXIT_SECONDS = 1.0
"""For the work of all listeners at exit, which waits for it."""
_SAME_EXIT_SECONDS = 5.0
"""Python says twice that it ends: before and after it waits for its threads. Within this time both calls
share one deadline."""


class ActivityWatch:
    """Calls its listeners on a thread of its own, one after the other; what they raise is only logged.

    ``look`` answers a value that changes with each compile, and ``None`` before the first one. ``busy``
    answers whether something is being compiled now. A listener is called at *compiled* and *quiet* only if
    something has happened since its last call, so several times in the life of a process.
    """

    def __init__(self, look: Callable[[], object], busy: Callable[[], bool]) -> None:
        self.listeners: list[Listener] = []
        self._look, self._busy = look, busy
        self.begin_again()

    def begin_again(self) -> None:
        """Forgets the thread: in a forked child there is none."""
        self._wake, self._flushed, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._exit_deadline: float | None = None
        self._flush_asked = False

    @property
    def running(self) -> bool:
        """Whether it was started and its thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread, once. The thread must exist before the exit: Python starts none then. Never
        raises."""
        try:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="cachesvc-watch", daemon=True)
                    thread.start()
                    self._thread = thread
        except RuntimeError as error:  # no more threads, or the process ends
            _log.debug("the outcome will not be said: %s", error)

    def compiled(self) -> None:
        """Says that a compile has ended. Cheap; for the thread that compiles."""
        self.start()
        self._wake.set()

    def flush(self, timeout: float = EXIT_SECONDS) -> bool:
        """Has the listeners called as at exit, and waits until they were, at most ``timeout`` seconds.
        Answers whether they were. May be called again."""
        now = time.monotonic()
        if not self.running:
            return False
        last = self._exit_deadline
        if last is None or now > last + _SAME_EXIT_SECONDS:
            self._exit_deadline = last = now + timeout
        self._flushed.clear()
        self._flush_asked = True
        self._wake.set()
        return self._flushed.wait(max(0.0, min(last, now + timeout) - now))

    def at_exit(self) -> None:
        """Has `flush` called when this process ends by itself: by its last line, an exception or
        ``sys.exit``, and in the children of multiprocessing, which skip the functions of ``atexit``."""
        before_threads_end = getattr(threading, "_register_atexit", None)  # concurrent.futures uses it too
        for register in (atexit.register, before_threads_end):
            if register is not None:
                try:
                    register(self._flush_at_exit)
                except RuntimeError as error:  # it ends already
                    _log.debug("%s", error)

    def _flush_at_exit(self) -> None:
        try:
            self.flush()
        except Exception:  # noqa: BLE001 - an exit of ours never prints a traceback
            _log.debug("at exit", exc_info=True)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception:  # noqa: BLE001 - watching is never the reason that anything fails
            _log.debug("the watch has ended", exc_info=True)
            self._flushed.set()

    def _watch(self) -> None:
        last: object = None  # what was seen last, and for which the listeners were called at each moment
        called: dict[Moment, object] = {"compiled": None, "quiet": None}
        since, pause, quiet = time.monotonic(), PAUSE_SECONDS, QUIET_SECONDS
        while True:
            done = last is None or last == called["quiet"]
            self._wake.wait(quiet if done else min(pause, quiet))
            self._wake.clear()
            if self._flush_asked:
                self._flush_asked = False
                self._call("exit", self._exit_deadline or 0.0)
                self._flushed.set()
                continue
            state, now = self._look(), time.monotonic()
            if state != last:
                last, since = state, now
            elif state is None or self._busy():
                continue
            elif now - since >= quiet and state != called["quiet"]:
                called["quiet"] = called["compiled"] = state
                self._call("quiet", now + WORK_SECONDS)
            elif now - since >= pause and state != called["compiled"]:
                called["compiled"] = state
                pause = min(2 * pause, quiet)
                self._call("compiled", now + WORK_SECONDS)

    def _call(self, moment: Moment, deadline: float) -> None:
        for listener in tuple(self.listeners):
            try:
                listener(moment, deadline)
            except Exception:  # noqa: BLE001 - nothing of ours is the reason that anything fails
                _log.debug("at %s: %s", moment, listener, exc_info=True)
