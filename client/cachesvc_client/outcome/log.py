"""Logs the outcome of a restore: one line at the first full hit, one warning as soon as something was
compiled afterwards."""

from __future__ import annotations

import logging

from ..hooks import logger
from ..hooks.activity import Moment
from .judge import Report


class OutcomeLog:
    """Logs the outcome of one process, each line once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()
        """Names of the lines that were logged, and the lines."""

    def say(self, report: Report, names: str, moment: Moment) -> None:
        """Logs what is new in ``report``.

        ``names``: the names that were restored; empty if none was, which the session has logged already.
        """
        if report.distrusted:  # the canary has logged it, and that this process compiles
            self._logged.add("compiled")
        elif names and report.revisions and not report.observed.clean:
            self._once(logging.WARNING, "compiled", compiled_line(report, names), report)
        elif names and report.state == "hit":
            self._once(logging.INFO, "hit", hit_line(report, names), report)
        if moment == "exit" and report.line not in self._logged:
            logger.write(logging.INFO, "at exit: %s", report.line)
            self._logged.add(report.line)

    def _once(self, level: int, name: str, line: str, report: Report) -> None:
        if name not in self._logged:
            self._logged |= {name, report.line}
            logger.write(level, "%s", line)


def hit_line(report: Report, names: str) -> str:
    """Returns the line of a full hit."""
    saved = f", {report.saved:.1f} s saved" if report.saved is not None else ""
    return f"{names}: hit: nothing compiled, {report.used}{saved}"


def compiled_line(report: Report, names: str) -> str:
    """Returns the warning of a process that compiled after a restore: how much, and the first reason."""
    observed = report.observed
    count = f"{observed.compilations} compilation{'' if observed.compilations == 1 else 's'}"
    if observed.tuning_runs:
        count += f", {observed.tuning_runs} tuning run{'' if observed.tuning_runs == 1 else 's'}"
    why = report.reasons[0] if report.reasons else f"for the reasons ask: cachesvc explain {names}"
    return f"{names}: compiled here after a restore ({count} so far): {why}"
