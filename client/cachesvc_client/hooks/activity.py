"""Watches what this process compiles, and calls listeners: after a compile, when it is quiet, and at exit.

The module imports only the standard library, since `attach` loads it on the application's own thread. Code
that has work to do when a process is quiet or ends (to log the outcome, to report it, to keep compiled files)
subscribes to the events of the process (`process.events`).
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
"""The reason why a listener is called. *compiled*: something was compiled or loaded, and the compiler pauses.
*quiet*: nothing was compiled or loaded for ``QUIET_SECONDS``. *exit*: this process ends."""
Listener = Callable[[Moment, float], None]
"""Takes the moment, and the deadline for its work as a value of ``time.monotonic()``."""

PAUSE_SECONDS = 0.2
"""Seconds from a compile to a call of the listeners; doubled after each call, up to ``QUIET_SECONDS``."""
QUIET_SECONDS = 5.0
"""Seconds without any compile until the process counts as quiet. A watch that waits for nothing looks again
after the same time."""
WORK_SECONDS = 5.0
"""Seconds for the work of a listener while the process goes on."""
EXIT_SECONDS = 1.0
"""Seconds for the work of all listeners at exit: the exit waits for them."""
_SAME_EXIT_SECONDS = 5.0
"""Seconds in which two calls at exit share one deadline: Python calls before and after it waits for its
threads."""


class ActivityWatch:
    """Calls its listeners on a thread of its own, one after the other, and logs the errors that they raise.

    ``look`` returns a value that changes with each compile, and ``None`` before the first one. ``busy``
    returns whether something is being compiled now. The watch calls a listener at *compiled* and *quiet* only
    if the value has changed since the last call, so several times in the life of a process.
    """

    def __init__(self, look: Callable[[], object], *, busy: Callable[[], bool]) -> None:
        self.listeners: list[Listener] = []
        self._look, self._busy = look, busy
        self.begin_again()

    def begin_again(self) -> None:
        """Forgets the thread of the parent in a forked child."""
        self._wake, self._flushed, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._exit_deadline: float | None = None
        self._flush_asked = False
        self._has_said = False
        """Whether the log has that an exit came too early."""

    @property
    def running(self) -> bool:
        """Returns whether the thread was started and is alive."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread, once; before the exit, since Python starts no thread then. Never raises."""
        try:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="cachesvc-watch", daemon=True)
                    thread.start()
                    self._thread = thread
        except RuntimeError as error:  # no more threads, or the process ends
            _log.debug("the outcome will not be logged: %s", error)

    def compiled(self) -> None:
        """Notes that a compile has ended. Cheap, since the thread that compiles calls it."""
        self.start()
        self._wake.set()

    def flush(self, timeout: float = EXIT_SECONDS) -> bool:
        """Has the listeners called as at exit, and waits for them, at most ``timeout`` seconds.

        Returns whether all of them were called. May be called again.
        """
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
        ``sys.exit``.

        This holds in the children of multiprocessing too, which skip the functions of ``atexit``.
        """
        before_threads_end = getattr(threading, "_register_atexit", None)  # concurrent.futures uses it too
        for register in (atexit.register, before_threads_end):
            if register is not None:
                try:
                    register(self._flush_at_exit)
                except RuntimeError as error:  # the process ends already
                    _log.debug("%s", error)

    def _flush_at_exit(self) -> None:
        try:
            if self.flush() or not self.running or self._has_said:
                return
            self._has_said = True
            _log.info("the process ended %g s into the work at its exit: the rest is lost", EXIT_SECONDS)
        except Exception:  # noqa: BLE001 - cachesvc never prints a traceback at exit
            _log.debug("at exit", exc_info=True)

    def _run(self) -> None:
        while True:
            try:
                self._watch()
            except Exception:  # noqa: BLE001 - watching is never the reason that anything fails
                _log.debug("the watch begins again", exc_info=True)
                self._flushed.set()
                time.sleep(QUIET_SECONDS)

    def _watch(self) -> None:
        last: object = None  # the last value of `look`
        called: dict[Moment, object] = {"compiled": None, "quiet": None}  # its value at the last call
        since, pause, quiet = time.monotonic(), PAUSE_SECONDS, QUIET_SECONDS
        while True:
            idle = last is None or last == called["quiet"]
            self._wake.wait(quiet if idle else min(pause, quiet))
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
            except Exception:  # noqa: BLE001 - cachesvc is never the reason that a service fails
                _log.debug("at %s: %s", moment, listener, exc_info=True)
