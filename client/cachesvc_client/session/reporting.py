"""Owns `Reporting`: what a process says of its start, in the log, to the registries and on this node.

`SessionReports` says to the registry of each session how its restore ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..environment.variables import is_mode_off
from ..outcome.log import OutcomeLog
from ..outcome.report import make_report
from ..outcome.send import Reporter, cold_start
from ..outcome.start_log import StartLog
from ..process.events import Listener
from ..ranks.job import this_job
from ..wire.errors import Incompatible, NotFound, Untrusted

if TYPE_CHECKING:
    from ..config.settings import Config
    from ..hooks.activity import Moment
    from ..outcome.judge import Report
    from ..process.process import Process
    from ..wire.requests.reports import ColdStart
    from .canary_watch import CanaryWatch
    from .missed_keys import MissedKeys
    from .session import Session


class Reporting(Listener):
    """Reports about all sessions of a process together."""

    def __init__(
        self, process: Process, sessions: Sequence[Session], canary: CanaryWatch, missed_keys: MissedKeys
    ) -> None:
        """``sessions``: the list of the sessions, which grows."""
        self._process, self._sessions = process, sessions
        self._canary, self._missed_keys = canary, missed_keys
        self._outcome, self._start_log = OutcomeLog(), StartLog()
        self._reports = SessionReports(process)

    def report(self, moment: Moment | None = None) -> Report:
        """Return the `outcome.judge.Report` of this process. ``moment``: why the watch asks for it."""
        results = [session.result for session in self._sessions if session.result is not None]
        ends = (line for session in self._sessions for line in _explain_end(session))
        failed = any(session.error is not None for session in self._sessions)
        unattached = "" if self._sessions else _why_not_attached()
        return make_report(self._process, results, ends, self._canary.lines(moment), failed, unattached)

    def restore_ended(self) -> None:
        """Report what was restored when the compilers pause.

        The exit needs these modules, after a failure too. Python cannot import all of them while it ends, and
        forgets that SIGINT ended it when an import of dataclasses runs exec().
        """
        from ..node import capture  # noqa: F401

        if this_job() is not None:
            from ..outcome import rank_log  # noqa: F401

        if any(session.has_revisions for session in self._sessions):
            self.report()
            self._process.watch.start()

    def paused(self, moment: Moment, deadline: float) -> None:
        """Log the outcome of the restore, send it to the registries, and keep it on this node."""
        self._canary.warn_of_uncalled(moment)
        report = self.report(moment)
        names = [session.label for session in self._sessions if session.has_revisions]
        self._outcome.say(report, ", ".join(names), moment)
        configs = [session.config for session in self._sessions if session.config is not None]
        if configs:
            self._say_of_ranks(report, configs[0])
        for session in self._sessions:
            self._reports.send(session, report, moment, deadline)
        if configs:
            self._start_log.keep(report, self._labels, configs[0].store)
        self._missed_keys.remember(report, moment)

    def forked(self) -> None:
        """Log and send the outcome of a forked child for itself."""
        self._outcome, self._reports = OutcomeLog(), SessionReports(self._process)

    def send(self, timeout: float) -> bool:
        """Do what `cachesvc_client.send_report` says."""
        self._process.watch.flush(timeout)
        return self._reports.sent

    @property
    def _labels(self) -> str:
        return ", ".join(session.label for session in self._sessions)

    def _say_of_ranks(self, report: Report, config: Config) -> None:
        """Have one rank of a job log the outcome of all ranks on this node."""
        if (job := this_job()) is not None:
            from ..outcome.rank_log import say_of_ranks

            say_of_ranks(report, job, self._labels, config.store)


def _why_not_attached() -> str:
    """Return why a process without sessions restores nothing. A child that Python starts anew, by ``spawn``
    or ``forkserver``, has none of its parent's."""
    if is_mode_off():
        return "cachesvc is switched off in this process: CACHESVC_MODE=off"
    return "this process is not attached: call attach() in it, or start it by cachesvc-client run"


def _explain_end(session: Session) -> Iterable[str]:
    """Yield the lines of a report that say how the restore of a session ended."""
    end = "" if session.error is None else f"{session.label}: not restored: {session.error}"
    if end:
        yield end
    elif not session.attempt.over:
        yield f"{session.label}: still {session.status}"
    elif session.status == "stored":
        yield f"{session.label}: came after the deadline, stored on this node for the next start"
    problems = () if session.result is None else session.result.problems
    yield from (one for one in problems if one.removeprefix(f"{session.label}: ") not in end)


class SessionReports:
    """Sends the report of this process to the registry of each session."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._reporters: dict[Session, Reporter] = {}
        """By session, what sends to its registry, once there was something to report."""

    @property
    def sent(self) -> bool:
        """Return whether any registry has a report of this start."""
        return any(reporter.sent for reporter in self._reporters.values())

    def send(self, session: Session, report: Report, moment: Moment, deadline: float) -> None:
        """Send ``report`` to a session's registry, if that is allowed, and the registry's revisions were
        installed or this start compiled for want of them.

        Raises nothing of a registry.
        """
        config, result, fingerprint = session.config, session.result, self._process.fingerprint
        if config is None or result is None or fingerprint is None:
            return
        if config.bundle is not None or not (config.report and config.url and config.token):
            return
        revisions = [*result.installed, *result.unusable.all()]
        cold = None if revisions else self._cold_start(session, report)
        if not revisions and cold is None:
            return
        reporter = self._reporters.setdefault(session, Reporter(config))
        reporter.send_changes(report, revisions, fingerprint, moment, deadline, cold)

    def _cold_start(self, session: Session, report: Report) -> ColdStart | None:
        """Return what a session wanted and the registry did not have; ``None`` if nothing was compiled, or
        if the registry did not answer: a start without it is not cold for want of an entry."""
        config, error = session.config, session.error
        answered = error is None or isinstance(error, (NotFound, Incompatible, Untrusted))
        if report.observed.clean or not session.requests or not session.ready or not answered:
            return None
        left = session.result is not None and session.result.more
        if config is None or config.mode == "off" or session.status == "stored" or left:
            return None
        return cold_start((one.name for one in session.requests), config.lane, self._process.output.models)
