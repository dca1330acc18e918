"""Read back the reports that `warm --json` wrote, also those of runs that failed before they had a target.

A report may come from another machine, so nothing of it is taken as it is: names are checked, and texts are
escaped where they are shown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import ALL, CacheSvcError, InvalidRequest, SpecError
from cachesvc_client.wire.names import Name, Target

from ..verdict.results import STATUSES, Outcome
from .head import ReportHead
from .render import FORMAT, exit_status, read_numbers, speed_notes

MAX_REPORT_BYTES = 64 << 20
"""Bytes of one report, at most."""
MAX_TARGETS = 10_000
_HINT = "give what cachesvc warm --json prints"
_LINE_OF_SPEC = re.compile(r"(?P<file>[^\n]{1,500}?), line (?P<line>\d{1,9}): ")
"""Matches how an error of the spec begins."""
_LINE_OF_TOML = re.compile(r"(?P<file>[^\n]{1,500}?): not TOML: .*\(at line (?P<line>\d{1,9}), column \d+\)")
"""Matches an error of a spec that is no TOML: the end is the message of ``tomllib``."""


@dataclass(frozen=True, slots=True)
class RunError:
    """Says why a run has no targets. ``file`` and ``line``: where, if the spec is at fault; else empty and
    ``None``."""

    text: str
    exit_status: int
    file: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class RunReport:
    """Holds what one run of `warm` reported. ``runner``: the name of the file, without ``.json``. ``head`` is
    ``None`` exactly if ``error`` is not."""

    runner: str
    head: ReportHead | None
    outcomes: tuple[Outcome, ...] = ()
    error: RunError | None = None

    @property
    def exit_status(self) -> int:
        """Return the exit status of the run."""
        return self.error.exit_status if self.error else exit_status(self.outcomes)


def read_report(path: Path) -> RunReport:
    """Read one report. A file without a byte is that of a run that was killed, or could not begin.

    Raises ``InvalidRequest``, one line, for a file that cannot be read or is no report.
    """
    if path.is_file() and path.stat().st_size == 0:
        return RunReport(path.stem, None, error=RunError("its run ended without a report: see its log", 1))
    document = load_report(path)
    try:
        if isinstance(document, dict) and "error" in document:
            return RunReport(path.stem, None, error=_error(document["error"]))
        if document["format"] != FORMAT or len(document["targets"]) > MAX_TARGETS:
            raise ValueError
        outcomes = tuple(map(_outcome, document["targets"]))
        return RunReport(path.stem, _head(document), outcomes)
    except (TypeError, KeyError, ValueError, AttributeError):
        raise InvalidRequest(f"{path}: no report of {FORMAT} with its environment", _HINT) from None


def load_report(path: Path) -> Any:
    """Read a file of JSON, as it is. Raises ``InvalidRequest``, one line."""
    try:
        if path.stat().st_size > MAX_REPORT_BYTES:
            raise InvalidRequest(f"{path}: larger than a report", _HINT)
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror or error}", _HINT) from None
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{path}: not JSON", _HINT) from None


def _head(document: Mapping[str, Any]) -> ReportHead:
    use = str(document.get("use", ""))
    lines = {row["target"].partition("/")[0]: row.get("line") for row in document["targets"]}
    return ReportHead(
        name=str(Name.parse(document["name"])),
        spec=str(document["spec"]),
        environment=dict(document["environment"]),
        python=str(document["python"]),
        registry=str(document.get("registry", "")),
        commit=str(document.get("commit", "")),
        # It stands in a block of code, which a backtick or another line could end.
        use=use if use.isprintable() and "`" not in use else "",
        target_lines={name: line for name, line in lines.items() if isinstance(line, int) and line > 0},
    )


def _outcome(row: Mapping[str, Any]) -> Outcome:
    """Return the outcome of which `warm` wrote this row."""
    compared = {
        name: {key: math.nan if value is None else value for key, value in item.items()}
        for name, item in row.get("compared", {}).items()
    }
    outcome = codec.build(Outcome, {**row, "compared": compared, "numbers": read_numbers(row)})
    Target(outcome.target)
    if outcome.status not in STATUSES:
        raise ValueError(outcome.status)
    # The notes of a report begin with those that its numbers give again.
    derived = speed_notes(outcome.numbers)
    return replace(outcome, notes=outcome.notes[len(derived) :]) if derived else outcome


def _error(error: Mapping[str, Any]) -> RunError:
    kind = ALL.get(str(error["code"]), CacheSvcError)
    message, hint = str(error["message"]), str(error.get("hint", ""))
    text = str(kind(message[:4000], hint[:1000]))
    place = _LINE_OF_SPEC.match(message) or _LINE_OF_TOML.match(message)
    if kind is not SpecError or place is None:
        return RunError(text, kind.exit_status)
    return RunError(text, kind.exit_status, place["file"], int(place["line"]))
