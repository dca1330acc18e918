"""Owns `SessionReports`: how the restore of each session ended, in words and to its registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..outcome.send import Reporter, cold_start
from ..wire.errors import Incompatible, NotFound, Untrusted

if TYPE_CHECKING:
    from ..hooks.activity import Moment
    from ..outcome.judge import Report
    from ..process.process import Process
    from ..wire.requests.reports import ColdStart
    from .session import Session


def explain_end(session: Session) -> Iterable[str]:
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
