"""Logs the outcome of a restore: one line for what was restored, one at the first full hit, one warning as
soon as something was compiled afterwards."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from ..hooks import logger
from ..hooks.activity import Moment
from ..wire.text import count_text
from .judge import Report

if TYPE_CHECKING:
    from ..node.installed import RestoreResult


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
            self._once(logging.WARNING, "compiled", compiled_line(report, names), report, names)
        elif names and report.state == "hit":
            if "hit" not in self._logged:
                _span_of_first_hit(names)
            self._once(logging.INFO, "hit", hit_line(report, names), report, names)
        if moment == "exit" and report.line not in self._logged:
            logger.write(logging.INFO, "at exit: %s", report.line, facts=outcome_facts("exit", report, names))
            self._logged.add(report.line)

    def _once(self, level: int, event: str, line: str, report: Report, names: str) -> None:
        if event not in self._logged:
            self._logged |= {event, report.line}
            logger.write(level, "%s", line, facts=outcome_facts(event, report, names))


def _span_of_first_hit(names: str) -> None:
    """Records the first full hit in the program's trace, where the program has imported OpenTelemetry."""
    if "opentelemetry.trace" in sys.modules:
        from .. import spans

        spans.moment("first_hit", **{"cachesvc.names": names})


def log_restored(label: str, result: RestoreResult, support: str) -> None:
    """Logs what a session has installed. ``label``: its names. ``support``: what may be restored here."""
    files = sum(entry.files for entry in result.installed)
    seconds = sum(result.seconds.values())
    more = f"; of {result.more} more, what a compile asks for" if result.more else ""
    logger.write(
        logging.INFO,
        "%s: %s, %s restored in %.2f s, %s moved; %s%s",
        label,
        count_text(len(result.installed), "revision"),
        count_text(files, "file"),
        seconds,
        count_text(result.moved, "byte"),
        support,
        more,
        facts={
            "event": "restored",
            "names": label.split(", "),
            "revisions": [str(entry.revision) for entry in result.installed],
            "files": files,
            "seconds": round(seconds, 3),
            "bytes_moved": result.moved,
            "more": result.more,
        },
    )


def hit_line(report: Report, names: str) -> str:
    """Returns the line of a full hit, with the reason if it traced all the same."""
    saved = f", {report.saved:.1f} s saved" if report.saved is not None else ""
    traced = f", but traced: {report.traced}" if report.traced else ""
    return f"{names}: hit{traced}: nothing compiled, {report.used}{saved}"


def compiled_line(report: Report, names: str) -> str:
    """Returns the warning of a process that compiled after a restore: how much, and the first reason."""
    observed = report.observed
    count = f"{observed.compilations} compilation{'' if observed.compilations == 1 else 's'}"
    if observed.tuning_runs:
        count += f", {observed.tuning_runs} tuning run{'' if observed.tuning_runs == 1 else 's'}"
    why = report.reasons[0] if report.reasons else f"for the reasons ask: cachesvc explain {names}"
    return f"{names}: compiled here after a restore ({count} so far): {why}"


def outcome_facts(event: str, report: Report, names: str) -> dict[str, object]:
    """Returns the fields that CACHESVC_LOG=json adds to a line about the outcome."""
    return {
        "event": event,
        "names": names.split(", ") if names else [],
        "state": report.state,
        "compilations": report.compilations,
        "tuning_runs": report.observed.tuning_runs,
        "artifacts_used": sum(use.used for use in report.revisions),
        "revisions_used": sum(use.used > 0 for use in report.revisions),
        "revisions_restored": len(report.revisions),
        "seconds_saved": report.saved,
        "reasons": list(report.reasons),
    }
