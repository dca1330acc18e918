"""Owns `Sessions`: all sessions of a process, and what they do together: wait, be judged, report.

The functions of this module open sessions. `attach` imports this module on the application's own thread, so
the module imports little at its top.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..environment import releases
from ..environment.variables import is_mode_off, is_switched_on, obsolete_line
from ..graphs import keys
from ..hooks import counters, imports, logger
from ..hooks.activity import ActivityWatch, Moment
from ..kinds import REFUSED
from ..wire.errors import InvalidRequest, Unsupported
from .callbacks import SessionCallbacks
from .canary_watch import CanaryWatch
from .compile_hook import hook_compiles
from .options import AttachOptions
from .process import Process, process
from .session import Session

if TYPE_CHECKING:
    from ..config import Config
    from ..outcome.judge import Report
    from ..outcome.log import OutcomeLog
    from ..outcome.start_log import StartLog
    from ..own_results.keep import Keeper
    from ..wire.names import Name
    from .missed_keys import MissedKeys
    from .quiet_publisher import QuietPublisher

_log = logging.getLogger("cachesvc")


class Sessions:
    """All sessions of this process: they share one wait before a compile, one canary and one report."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.sessions: list[Session] = []
        self.watch = ActivityWatch(self._activity, counters.compiling)
        self.watch.listeners += [self._report_activity, self._keep_own_results, self._publish]
        self.exiting = False
        """Whether the process ends: nothing is logged any more."""
        self._outcome: OutcomeLog | None = None
        self._start_log: StartLog | None = None
        self._keeper: Keeper | None = None
        self._publisher: QuietPublisher | None = None
        self._missed_keys: MissedKeys | None = None
        self._follows_process = False
        """Whether fork and exit of the process call this object."""
        self.canary = CanaryWatch(process, self.sessions, self.watch.compiled)

    def new_session(self, options: AttachOptions) -> Session:
        """Make a session that acts on this process. The caller adds the session to ``sessions``."""
        callbacks = SessionCallbacks(
            arm=self.arm,
            disarm=self.disarm,
            attach_count=self._attach_count,
            demand_bound_keys=self._demand_bound_keys,
            exiting=lambda: self.exiting,
            report=self.report,
            start_watch=self.watch.start,
        )
        return Session(self.process, options, callbacks)

    def arm(self) -> None:
        """Put the hooks in place, once; cheap, and imports nothing of the compilers.

        A torch that is refused gets no hook; the sessions' threads say why.
        """
        if self.process.armed:
            return
        # Without the lock: this call may wait for an import that waits for the lock.
        refused = releases.refusal(releases.torch()[0]) is not None
        with self.process.lock:
            if not self._follows_process:
                self._follow_process()
            if refused:
                self._raise_at_compile()
            elif not self.process.armed:
                self.process.arm(
                    self.before_compile,
                    self._watch_graph,
                    self.watch.compiled,
                    self._traces,
                    self.canary.comparison,
                    self.wait_for_start,
                    self._bring,
                    self.runs_eagerly,
                )

    def disarm(self) -> None:
        """Take the hooks out: this torch is refused after all, for a hook that its sources lack."""
        with self.process.lock:
            self.process.disarm()
            self._raise_at_compile()

    def before_compile(self) -> None:
        """Wait for each session, once and within its deadline. Raises only under CACHESVC_STRICT."""
        waiting = [session for session in self.sessions if not session.waited]
        if not waiting:
            return
        begin = time.perf_counter()
        for session in waiting:
            session.begin_compile(begin)
        for session in waiting:
            session.wait_for_compile(begin)
        if self.process.armed and (reason := keys.missing_here()):
            for session in waiting:
                session.withdraw(reason)
        self.process.seconds["wait"] += time.perf_counter() - begin
        for session in waiting:
            session.raise_if_strict()

    def wait_for_start(self) -> bool:
        """Wait for each session as the first compile does, within its deadline; return whether all are over.

        Raises only under CACHESVC_STRICT.
        """
        begin = time.perf_counter()
        for session in self.sessions:
            session.ensure_running()
        over = [session.wait(session.seconds_left(begin)) for session in self.sessions]
        return all(over)

    def runs_eagerly(self) -> bool:
        """Wait for the restore of each session; return whether calls run without a compile for now, because
        another process compiles what a session missed. Does not raise."""
        each = [session.runs_eagerly() for session in self.sessions if not session.waited]
        return any(each)

    def _bring(self, key: str) -> bool:
        """Bring what holds a key that a compiler did not find, where a session may ask for it."""
        if not self._asks_by_key():
            return False
        from .missed_keys import MissedKeys

        with self.process.lock:
            if self._missed_keys is None:
                self._missed_keys = MissedKeys(self.process, self.sessions)
        brought = self._missed_keys.bring(key)
        if brought:
            self.watch.start()
        return brought

    def _asks_by_key(self) -> bool:
        return any(session.restoring and session.restoring.on_demand for session in self.sessions)

    def _restored_in_part(self) -> bool:
        return any(session.restoring and session.restoring.partial for session in self.sessions)

    def _follow_process(self) -> None:
        self._follows_process = True
        self.canary.draw()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=_open_gate, after_in_child=self._after_fork
        )
        atexit.register(self._begin_exit)  # runs after the functions that are registered later
        self.watch.at_exit()
        if os.environ.get("CACHESVC_LOG"):
            from ..outcome.show_log import show_as_asked

            show_as_asked()
        for line in filter(None, (obsolete_line(), *REFUSED)):
            logger.write(logging.WARNING, "%s", line)

    def _raise_at_compile(self) -> None:
        """Let the first compile of a refused torch raise, where CACHESVC_STRICT asks for that."""
        if is_switched_on("CACHESVC_STRICT"):
            hook_compiles(self._wait_before)

    def _wait_before(self, call: imports.Call) -> Any:
        self.before_compile()
        return call()

    def _attach_count(self, options: AttachOptions) -> int:
        """Count how often this process has attached to the same target: ranks do so equally often."""
        return sum(session.options.same_target(options) for session in self.sessions)

    def _demand_bound_keys(self) -> None:
        """Raise ``InvalidRequest`` if this process has attached to names of several namespaces, and trusts a
        key without saying for which."""
        from ..bundle.seal import require_bound_keys
        from ..config import Config

        config = Config.read()
        names: set[Name] = set()
        for session in self.sessions:
            with suppress(InvalidRequest):  # that session fails by itself
                names.update(session.options.over(config).names)
        require_bound_keys(config.trusted_keys, (name.namespace for name in names))

    def _before_fork(self) -> None:
        from . import fork_gate  # `attach` loads nothing that a fork alone needs

        fork_gate.close()

    def _after_fork(self) -> None:
        """Forget the parent's threads in a forked child: unfinished work begins again when it is needed."""
        _open_gate()
        self.process.begin_again()
        self.watch.begin_again()
        self._outcome = self._publisher = self._missed_keys = None
        for session in self.sessions:
            session.begin_again()

    def _begin_exit(self) -> None:
        self.exiting = True

    # What the hooks ask ---------------------------------------------------------------------------

    def _watch_graph(self, graph: Any) -> Callable[[Any], Any] | None:
        """Return what the canary puts around a compiled graph; ``None`` where it watches nothing.

        Never raises.
        """
        return self.canary.watch_graph(graph, may_come=self._asks_by_key())

    def _traces(self) -> bool:
        """Return whether this process traces although frames were restored."""
        return not all(session.config.frames for session in self.sessions if session.config is not None)

    # Reports --------------------------------------------------------------------------------------

    def _activity(self) -> object:
        """Return a value that changes where there is something to report; ``None`` before anything was
        compiled or loaded."""
        activity = self.process.activity()
        return None if activity is None else (activity, self.canary.verdicts)

    def report(self, moment: Moment | None = None) -> Report:
        """Return the `outcome.judge.Report` of this process. ``moment``: why the watch asks for it."""
        from ..outcome.report import make_report

        results = [session.result for session in self.sessions if session.result is not None]
        ends = (line for session in self.sessions for line in session.explain_end())
        canary = self.canary.lines(moment)
        failed = any(session.error is not None for session in self.sessions)
        unattached = "" if self.sessions else _why_not_attached()
        return make_report(self.process, results, ends, canary, failed, unattached)

    def _say_of_ranks(self, report: Report) -> None:
        """Have one rank of a job log the outcome of all ranks on this node."""
        from ..ranks.job import this_job

        job, configs = this_job(), [session.config for session in self.sessions if session.config is not None]
        if job is not None and configs:
            from ..outcome.rank_log import say_of_ranks

            say_of_ranks(report, job, ", ".join(session.label for session in self.sessions), configs[0].store)

    def _keep_start(self, report: Report) -> None:
        """Keep the outcome on this node, for the command `stats`."""
        from ..outcome.start_log import StartLog

        configs = [session.config for session in self.sessions if session.config is not None]
        if configs:
            self._start_log = self._start_log or StartLog()
            names = ", ".join(session.label for session in self.sessions)
            self._start_log.keep(report, names, configs[0].store)

    def send_report(self, timeout: float) -> bool:
        """Do what `cachesvc_client.send_report` says."""
        self.watch.flush(timeout)
        return any(session.reporter is not None and session.reporter.sent for session in self.sessions)

    def _keep_own_results(self, moment: Moment, deadline: float) -> None:
        """Keep what was compiled here for the node's next start, after the reports were sent."""
        from ..own_results.keep import Keeper

        if self._keeper is None:
            self._keeper = Keeper(self.process)
        self._keeper(moment, deadline)

    def _publish(self, moment: Moment, _deadline: float) -> None:
        """Have published what is new, if a session publishes by itself and the process is quiet."""
        if moment != "quiet" or not any(session.right is not None for session in self.sessions):
            return
        from .quiet_publisher import QuietPublisher

        if self._publisher is None:
            self._publisher = QuietPublisher(self.process, self.sessions)
        self._publisher.notice_quiet()

    def _report_activity(self, moment: Moment, deadline: float) -> None:
        """Log the outcome of the restore and send it to the registries; runs on the watch's thread."""
        from ..outcome.log import OutcomeLog

        self.canary.warn_of_uncalled(moment)
        report = self.report(moment)
        if self._outcome is None:
            self._outcome = OutcomeLog()
        names = [session.label for session in self.sessions if session.has_revisions]
        self._outcome.say(report, ", ".join(names), moment)
        self._say_of_ranks(report)
        for session in self.sessions:
            session.send_report(report, moment, deadline)
        self._keep_start(report)
        if self._missed_keys is not None or self._restored_in_part():
            from .missed_keys import MissedKeys

            self._missed_keys = self._missed_keys or MissedKeys(self.process, self.sessions)
            self._missed_keys.remember(report, moment)


def attached() -> Sessions:
    """Return the sessions of this process; the first call makes them."""
    state = process()
    if state.sessions is None:
        with state.lock:
            if state.sessions is None:
                state.sessions = Sessions(state)
    return state.sessions


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
            session = state.new_session(options)
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
    state.arm()
    session = state.new_session(AttachOptions())
    state.process.captured = True
    try:
        session.open_local(config)
    except Unsupported:
        state.disarm()
        raise
    with state.process.lock:
        state.sessions.append(session)
    return session


def _open_gate() -> None:
    from . import fork_gate

    fork_gate.open_again()


def _why_not_attached() -> str:
    """Return why a process without sessions restores nothing. A child that Python starts anew, by ``spawn``
    or ``forkserver``, has none of its parent's."""
    if is_mode_off():
        return "cachesvc is switched off in this process: CACHESVC_MODE=off"
    return "this process is not attached: call attach() in it, or start it by cachesvc-client run"
