"""Render outcomes as table rows, plain lines, JSON and Markdown. Pure; `cachesvc.cli.warm` prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cachesvc_client.wire.codec import plain
from cachesvc_client.wire.errors import NotWarm
from cachesvc_client.wire.text import count_text

from ..spec.plan import Job
from ..verdict.results import STATUSES, Numbers, Outcome
from ..worker.steady import Faster, Steady
from .head import ReportHead

FORMAT = "cachesvc.warm/2"
"""Name and version of the JSON form."""
PLAN_FORMAT = "cachesvc.warm.plan/1"
"""Name and version of the JSON form of a dry run."""
_COUNTS = ("speed_up", "faster", "break_even", "restored_break_even")
"""The fields of `Numbers` that hold no seconds."""
_UNIT = "_seconds"
"""The end of the names of the others in JSON."""

COLUMNS = (
    "target",
    "status",
    "compile",
    "first call",
    "steady",
    "eager first",
    "eager steady",
    "speed-up",
    "break-even",
    "restored first",
    "restored break-even",
    "graph breaks",
    "recompiles",
    "files",
    "bytes",
    "pack",
    "difference",
    "replays",
)
"""Columns of every form. Times are sums over a target's input sets; ``a -> b``: before and after trimming."""

_SHORT = ("target", "status", "first call", "restored first", "steady", "eager steady", "speed-up")
_SHORT_TAIL = ("restored break-even", "graph breaks", "files", "pack", "difference")
TERMINAL_COLUMNS = (*_SHORT, *_SHORT_TAIL)
"""Columns that fit on a terminal; the Markdown and the JSON have all."""


def exit_status(outcomes: Iterable[Outcome]) -> int:
    """Return the exit status of the command: 0 if all targets are warm or fresh, 130 if the run was
    interrupted, the status of an error that was not a target's own (registry, signing key, disk), else 9."""
    every = list(outcomes)
    if all(outcome.good for outcome in every):
        return 0
    if any(outcome.status == "cancelled" for outcome in every):
        return 130
    statuses = {outcome.error_status or NotWarm.exit_status for outcome in every if not outcome.good}
    return statuses.pop() if len(statuses) == 1 else NotWarm.exit_status


def cells(outcome: Outcome) -> dict[str, str]:
    """Return every column as text; ``-`` for what was not measured."""
    numbers = outcome.numbers
    return {
        "target": outcome.target,
        "status": outcome.status,
        "compile": seconds(numbers.compile),
        "first call": seconds(numbers.first_call),
        "steady": _steady(numbers.steady, numbers.steady_spread),
        "eager first": seconds(numbers.eager_first),
        "eager steady": _steady(numbers.eager_steady, numbers.eager_spread),
        "speed-up": _speed_up(numbers),
        "break-even": "-" if numbers.first_call is None else _calls(numbers.break_even, numbers.faster),
        "restored first": seconds(numbers.restored_first),
        "restored break-even": (
            "-" if numbers.restored_first is None else _calls(numbers.restored_break_even, numbers.faster)
        ),
        "graph breaks": str(sum(item.count for item in outcome.graph_breaks)),
        "recompiles": str(len(outcome.recompiles)),
        "files": _change(str(outcome.files_before), str(outcome.files_after)),
        "bytes": _change(size(outcome.bytes_before), size(outcome.bytes_after)),
        "pack": size(outcome.pack_bytes) if outcome.pack_bytes else "-",
        "difference": _difference(outcome),
        "replays": str(outcome.replays),
    }


def details(outcome: Outcome) -> list[str]:
    """Return what a table has no room for, in lines: reasons, graph breaks, recompiles, notes, and where the
    result is."""
    text = [f"not warm: {reason}" for reason in outcome.reasons if not outcome.good]
    text += [reason for reason in outcome.reasons if outcome.good]
    text += speed_notes(outcome.numbers)
    for item in outcome.graph_breaks:
        times = f" ({item.count} times)" if item.count > 1 else ""
        text.append(f"graph break{times} at {item.where or 'an unknown line'}: {item.reason}")
    text += [f"recompiled {reason}" for reason in outcome.recompiles]
    text += [f"inputs {name!r}: {item.note}" for name, item in outcome.compared.items() if item.note]
    text += ["tuning results are part of the entry (finalised)"] if outcome.finalised else []
    text += list(outcome.notes)
    text += [f"published as {outcome.revision}"] if outcome.revision else []
    text += [f"written to {outcome.bundle}"] if outcome.bundle else []
    return text


def is_measured(outcome: Outcome) -> bool:
    """Return whether a table has anything to show for the target: it has times or files."""
    return outcome.numbers != Numbers() or outcome.files_after > 0


def lines(head: ReportHead, outcomes: Sequence[Outcome]) -> list[str]:
    """Return plain lines for CI: the head, each target with what was measured, its details, and a summary."""
    text = head_lines(head)
    for outcome in outcomes:
        row = cells(outcome)
        pairs = [f"{name} {row[name]}" for name in COLUMNS[2:] if row[name] not in ("-", "0", "0 B")]
        text.append(f"{outcome.target}: {outcome.status}" + (": " + ", ".join(pairs) if pairs else ""))
        text += [f"  {line}" for line in details(outcome)]
    return [*text, *tail_lines(head, outcomes)]


def head_lines(head: ReportHead) -> list[str]:
    """Return the lines before the targets."""
    return [head.name, *(f"  {label:<11}  {text}" for label, text in head.lines())]


def tail_lines(head: ReportHead, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines after the targets: the summary, and the line to use what is warm."""
    use = [f"use it: {head.use}"] if any(outcome.good for outcome in outcomes) else []
    return [summary(outcomes), *use]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return one line: how many of the targets are warm, and how many have which status."""
    good = sum(outcome.good for outcome in outcomes)
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in STATUSES}
    listed = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{good} of {len(outcomes)} targets are warm ({listed})"


def document(head: ReportHead, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the JSON form: seconds and bytes as numbers. Numbers that JSON lacks become ``null``."""
    report = {
        "format": FORMAT,
        "name": head.name,
        "spec": head.spec,
        "warm": all(outcome.good for outcome in outcomes),
        "exit_status": exit_status(outcomes),
        "environment": dict(head.environment),
        "python": head.python,
        "registry": head.registry,
        "commit": head.commit,
        "use": head.use if any(outcome.good for outcome in outcomes) else "",
        "targets": [{**_target(outcome), "line": head.line_of(outcome.target)} for outcome in outcomes],
    }
    finite: dict[str, Any] = _finite(report)
    return finite


def read_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Numbers` of a target's row of the JSON form."""
    return {name.removesuffix(_UNIT): value for name, value in row.get("numbers", {}).items()}


def _target(outcome: Outcome) -> dict[str, Any]:
    numbers = {
        name if name in _COUNTS else name + _UNIT: value for name, value in plain(outcome.numbers).items()
    }
    return {**plain(outcome), "numbers": numbers, "notes": _notes(outcome)}


def markdown(head: ReportHead, outcomes: Sequence[Outcome]) -> str:
    """Return a report for a pull request or a job's summary."""
    text = [f"# Warm report: {head.name}", "", summary(outcomes) + ".", ""]
    text += [f"- {label}: {escape(line)}" for label, line in head.lines()]
    measured = [cells(outcome) for outcome in outcomes if is_measured(outcome)]
    if measured:
        text += ["", "| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * (len(COLUMNS) - 2)]
        text += ["| " + " | ".join(escape(row[column]) for column in COLUMNS) + " |" for row in measured]
    for outcome in outcomes:
        more = details(outcome)
        if more or not is_measured(outcome):
            text += ["", f"## {escape(outcome.target)}: {escape(outcome.status)}", ""]
            text += [f"- {escape(line)}" for line in more]
    if any(outcome.good for outcome in outcomes):
        text += ["", "## Use it", "", "```sh", head.use, "```"]
    return "\n".join([*text, ""])


def plan_lines(jobs: Sequence[Job]) -> list[str]:
    """Return the plan of a dry run: for each job a line with what it would be compiled with."""
    text = []
    for job in jobs:
        spec = job.spec
        source = spec.factory or spec.vllm or " ".join([spec.script, *spec.args])
        inputs = f", inputs {', '.join(spec.inputs)}" if spec.inputs else ""
        options = ", ".join(f"{key}={_option_text(value)}" for key, value in job.options.items())
        kind = "script" if job.is_script else "vllm" if job.is_engine else spec.kind
        text.append(f"{job.label}: {kind} of {source}{inputs} ({options})")
    return [*text, f"{count_text(len(jobs), 'entry', 'entries')} would be made"]


def seconds(value: float | None) -> str:
    """Return seconds with three digits: ``28.4 s``, ``12.3 ms``, ``45.6 us``."""
    if value is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1 or unit == "us":
            break
    scaled = value * factor
    return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


def size(value: int) -> str:
    """Return bytes in decimal units, as disks and networks count: ``1.26 MB``."""
    scaled, unit = float(value), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if scaled < 1000 or unit == "GB":
            break
        scaled /= 1000
    return f"{scaled:.0f} {unit}" if unit == "B" or scaled >= 100 else f"{scaled:.3g} {unit}"


def _notes(outcome: Outcome) -> list[str]:
    return [*speed_notes(outcome.numbers), *outcome.notes]


def _steady(value: float | None, spread: Steady | None) -> str:
    return seconds(value) + (", noisy" if spread and spread.noisy else "")


def _speed_up(numbers: Numbers) -> str:
    if numbers.faster == "unclear":
        return "unclear"
    return "-" if numbers.speed_up is None else f"{numbers.speed_up:.2g}x"


def speed_notes(numbers: Numbers) -> list[str]:
    """Return in words where compiling does not pay, where that cannot be said, and which times are noisy."""
    compiled, eager = numbers.steady_spread, numbers.eager_spread
    if compiled is None or eager is None:
        return []
    notes = []
    if numbers.faster == "eager":
        notes.append(
            f"eager is faster here: {seconds(eager.median)} against {seconds(compiled.median)} compiled"
        )
    if numbers.faster == "unclear":
        notes.append(
            f"compiled and eager calls cannot be told apart: {_range(compiled)} and {_range(eager)}, so no "
            "break-even is given"
        )
    names = [name for name, one in (("compiled", compiled), ("eager", eager)) if one.noisy]
    if names:
        ranges = " and ".join(
            f"{name} {_range(one)}" for name, one in (("compiled", compiled), ("eager", eager))
        )
        notes.append(f"noisy: half of the steady calls took {ranges}; a quiet machine or more runs tell more")
    return notes


def _range(steady: Steady) -> str:
    return f"{seconds(steady.low)} to {seconds(steady.high)}"


def _calls(calls: int | None, faster: Faster) -> str:
    if calls is None:
        return {"": "-", "unclear": "unclear"}.get(faster, "never")
    return "1 call" if calls == 1 else f"{calls} calls"


def _change(before: str, after: str) -> str:
    return after if before == after or before in ("0", "0 B") else f"{before} -> {after}"


def _difference(outcome: Outcome) -> str:
    """Return the difference of the worst input set, and what is allowed there."""
    comparisons = [item for item in outcome.compared.values() if not item.note]
    if not comparisons:
        return "-"
    worst = max(comparisons, key=lambda item: (not item.passed, item.difference))
    return f"{worst.difference:.2g} of {worst.allowed:.2g}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def escape(text: str) -> str:
    """Return text for one cell or line of Markdown, which shows it as it is: no markup, no link, no picture.
    Nobody is notified on GitHub or GitLab: an entity stands between ``@`` and a name, and between ``#`` and
    a number."""
    line = " ".join(text.splitlines()).replace("&", "&amp;").replace("<", "&lt;")
    return _REFERENCE.sub("\\1&#8203;", _MARKUP.sub(r"\\\g<0>", line))


_MARKUP = re.compile(r"^#|[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Matches what is markup within a line. ``_`` inside of a word is none.
A text that begins with ``#`` would be a heading."""
_REFERENCE = re.compile(r"((?<!&)[@#!])(?=\w)")
"""Matches the beginning of a mention, and of a reference to an issue, a pull or a merge request."""


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
