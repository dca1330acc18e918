"""Shows a report to a person: a few lines of text, or HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..wire.errors import printable
from ..wire.text import count_text

if TYPE_CHECKING:
    from .judge import Report, RevisionUse

_MOST_REASONS = 5
_MOST_REVISIONS = 5
"""Rows that are shown, at most; one more says how many there are beside them."""
_MOST_CHARACTERS = 300
"""Characters of one reason that are shown, at most. The attribute ``reasons`` has all of them."""


def text(report: Report) -> str:
    """Return the outcome, the reasons and the revisions, one line each."""
    lines = [f"<cachesvc report> {_outcome(report)}"]
    lines += [f"  why: {reason}" for reason in _reasons(report)]
    lines += [f"  {name}: {use}" for name, use in _revisions(report)]
    return "\n".join(lines)


def html(report: Report) -> str:
    """Return the lines of `text` as HTML, with every text of others escaped."""
    from html import escape

    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in _reasons(report))
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(use)}</td></tr>" for name, use in _revisions(report)
    )
    outcome = escape(_outcome(report).partition(": ")[2])
    return (
        f"<div><b>cachesvc: {escape(report.state)}</b>: {outcome}"
        + (f"<ul>{reasons}</ul>" if reasons else "")
        + (f"<table>{rows}</table>" if rows else "")
        + "</div>"
    )


def _outcome(report: Report) -> str:
    observed = report.observed
    parts = [
        count_text(observed.compilations, "compilation"),
        count_text(observed.tuning_runs, "tuning run"),
        report.used,
    ]
    if report.saved is not None:
        parts.append(f"{report.saved:.1f} s saved")
    return f"{report.state}: {', '.join(parts)}"


def _reasons(report: Report) -> Iterator[str]:
    for reason in report.reasons[:_MOST_REASONS]:
        line = printable(" ".join(reason.split()))
        yield line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"
    if len(report.reasons) > _MOST_REASONS:
        yield f"and {len(report.reasons) - _MOST_REASONS} more, see .reasons"


def _revisions(report: Report) -> Iterator[tuple[str, str]]:
    """Yield a label and the use of each revision, those that were used first."""
    uses = sorted(report.revisions, key=lambda use: -use.used)
    for use in uses[:_MOST_REVISIONS]:
        yield f"{use.name} {use.target}", _use(use)
    if len(uses) > _MOST_REVISIONS:
        yield "and", f"{len(uses) - _MOST_REVISIONS} more, see .revisions"


def _use(use: RevisionUse) -> str:
    saved = f", {use.saved:.1f} s saved" if use.saved is not None else ""
    return f"{use.state}, {count_text(use.used, 'artifact')} used of {count_text(use.files, 'file')}{saved}"
