"""Owns `Sessions`: all sessions of a process, for which its compiles wait.

The functions of this module open sessions. `attach` imports this module on the application's own thread, so
the module imports little at its top.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..environment.variables import obsolete_line
from ..graphs import keys
from ..hooks import imports, logger
from ..kinds import REFUSED
from ..process.events import Listener
from ..process.process import Process, process
from ..wire.errors import Unsupported
from .canary_watch import CanaryWatch
from .options import AttachOptions
from .session import Session

if TYPE_CHECKING:
    from ..config.settings import Config
    from .missed_keys import MissedKeys
    from .reporting import Reporting


class Sessions(Listener):
    """All sessions of this process: a compile waits for them, and they share one canary and one report."""

    def __init__(self, process: Process) -> None:
        """Subscribe to the events of the process, with what acts on them for the sessions."""
        self.process = process
        self.sessions: list[Session] = []
        self.canary = CanaryWatch(process, self.sessions)
        process.events.subscribe(self)
        process.events.subscribe(self.canary)
        process.events.subscribe_late(self._late_listeners)

    @functools.cached_property
    def missed_keys(self) -> MissedKeys:
        """Return what asks for keys that a compiler missed; the first use makes the object."""
        from .missed_keys import MissedKeys

        return MissedKeys(self.process, self.sessions)

    @functools.cached_property
    def reporting(self) -> Reporting:
        """Return what reports about this process; the first use makes the object."""
        from .reporting import Reporting

        return Reporting(self.process, self.sessions, self.canary, self.missed_keys)

    def _late_listeners(self) -> Sequence[Listener]:
        from ..own_results.keep import Keeper
        from .quiet_publisher import QuietPublisher

        keeper, publisher = Keeper(self.process), QuietPublisher(self.process, self.sessions)
        return self.reporting, self.missed_keys, keeper, publisher

    def armed(self) -> None:
        """Begin to log, as the user asks for it, and compile for the level that the user asks for."""
        if os.environ.get("CACHESVC_LOG"):
            from ..outcome.show_log import show_as_asked

            show_as_asked()
        lines = [obsolete_line(), *REFUSED]
        if os.environ.get("CACHESVC_MARCH"):
            from ..environment.level_choice import set_level

            lines.append(set_level())
        for line in filter(None, lines):
            logger.write(logging.WARNING, "%s", line)

    def before_compile(self) -> None:
        """Wait for each session, once and within its deadline. Raises only under CACHESVC_STRICT."""
        waiting = [session for session in self.sessions if not session.waiting.over]
        if not waiting:
            return
        begin = time.perf_counter()
        for session in waiting:
            session.waiting.begin_compile(begin)
        for session in waiting:
            session.waiting.wait_for_compile(begin)
        if self.process.armed and (reason := keys.missing_here()):
            for session in waiting:
                session.withdraw(reason)
        self.process.output.seconds["wait"] += time.perf_counter() - begin
        for session in waiting:
            session.raise_if_strict()

    def wait_for_restore(self) -> bool:
        """Wait for each session as the first compile does, within its deadline; return whether all are over.

        Raises only under CACHESVC_STRICT.
        """
        begin = time.perf_counter()
        for session in self.sessions:
            session.ensure_running()
        over = [session.wait(session.waiting.seconds_left(begin)) for session in self.sessions]
        return all(over)

    def runs_eagerly(self) -> bool:
        """Wait for the restore of each session; return whether calls run without a compile for now, because
        another process compiles what a session missed. Does not raise."""
        each = [session.waiting.runs_eagerly() for session in self.sessions if not session.waiting.over]
        return any(each)

    def restoring(self) -> bool:
        """Return whether the first attempt of a session goes on."""
        return not all(session.ready for session in self.sessions)

    def traces(self) -> bool:
        """Return whether this process traces although frames were restored."""
        return not all(session.config.frames for session in self.sessions if session.config is not None)

    def forked(self) -> None:
        """Have unfinished work begin again in a forked child when it is needed."""
        for session in self.sessions:
            session.begin_again()


_attached: Sessions | None = None


def attached() -> Sessions:
    """Return the sessions of this process; the first call makes them."""
    global _attached
    state = process()
    if _attached is None:
        with state.lock:
            if _attached is None:
                _attached = Sessions(state)
    return _attached


def open_session(options: AttachOptions, *, with_torch: bool = False) -> Session:
    """Arm the hooks and start the restore. Never waits and never raises.

    A second call with the same target (a notebook that runs a cell twice) returns the session that is there,
    unless the restore of that session failed: then a new session tries again.

    ``with_torch``: arm and start only when this process begins to import torch. This is for an attach that
    reaches every interpreter of a job, most of which never import torch.
    """
    state = attached()
    with state.process.lock:
        for session in state.sessions:
            if session.error is None and session.options.same_target(options):
                break
        else:
            session = Session(state.process, options, state.sessions)
            state.sessions.append(session)
    if with_torch:
        imports.when_importing("torch", session.ensure_running)
    else:
        session.ensure_running()
    return session


def open_local(config: Config) -> Session:
    """Arm the hooks and prepare the folders without a restore: for a process that compiles to be captured.

    Raises ``Unsupported`` for a torch that is refused, which has no hook in it then, and ``StorageFull`` if
    there is no node store to put a private folder into.
    """
    state = attached()
    state.process.arm()
    session = Session(state.process, AttachOptions(), state.sessions)
    state.process.captured = True
    try:
        session.open_local(config)
    except Unsupported:
        state.process.disarm()
        raise
    with state.process.lock:
        state.sessions.append(session)
    return session
