"""Render outcomes as table rows, plain lines, JSON and Markdown. Pure; `cachesvc.cli.warm` prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from cachesvc_client.wire.codec import plain
from cachesvc_client.wire.errors import NotWarm
from cachesvc_client.wire.factors import Fingerprint

from .plan import Job
from .results import Outcome

FORMAT = "cachesvc.warm/1"
"""Name and version of the JSON form."""

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
        "steady": seconds(numbers.steady),
        "eager first": seconds(numbers.eager_first),
        "eager steady": seconds(numbers.eager_steady),
        "speed-up": "-" if numbers.speed_up is None else f"{numbers.speed_up:.2f}x",
        "break-even": _calls(numbers.break_even, numbers.speed_up),
        "restored first": seconds(numbers.restored_first),
        "restored break-even": _calls(
            numbers.restored_break_even, None if numbers.restored_first is None else numbers.speed_up
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


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Return plain lines for CI: each target with all its columns, its details, and a summary."""
    text = []
    for outcome in outcomes:
        row = cells(outcome)
        pairs = [f"{name} {row[name]}" for name in COLUMNS[2:] if row[name] not in ("-", "0", "0 B")]
        text.append(f"{outcome.target}: {outcome.status}" + (": " + ", ".join(pairs) if pairs else ""))
        text += [f"  {line}" for line in details(outcome)]
    return [*text, summary(outcomes)]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return one line: how many of the targets are warm, and how many have which status."""
    good = sum(outcome.good for outcome in outcomes)
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _STATUSES}
    listed = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{good} of {len(outcomes)} targets are warm ({listed})"


_STATUSES = ("warm", "fresh", "cold", "failed", "cancelled")


def document(name: str, spec: str, outcomes: Sequence[Outcome], environment: Fingerprint) -> dict[str, Any]:
    """Return the JSON form: seconds and bytes as numbers. Numbers that JSON lacks become ``null``.

    ``environment``: the fingerprint of this machine.
    """
    report = {
        "format": FORMAT,
        "name": name,
        "spec": spec,
        "warm": all(outcome.good for outcome in outcomes),
        "exit_status": exit_status(outcomes),
        "environment": dict(environment),
        "targets": [plain(outcome) for outcome in outcomes],
    }
    finite: dict[str, Any] = _finite(report)
    return finite


def markdown(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return a report for a pull request or a job's summary."""
    rows = [cells(outcome) for outcome in outcomes]
    text = [f"# Warm report: {name}", "", summary(outcomes) + ".", ""]
    text.append("| " + " | ".join(COLUMNS) + " |")
    text.append("|---|---|" + "---:|" * (len(COLUMNS) - 2))
    text += ["| " + " | ".join(escape(row[column]) for column in COLUMNS) + " |" for row in rows]
    for outcome in outcomes:
        if more := details(outcome):
            text += ["", f"## {outcome.target}", ""]
            text += [f"- {escape(line)}" for line in more]
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
        text.append(f"{job.target}: {kind} of {source}{inputs} ({options})")
    return [*text, f"{len(jobs)} entries would be made"]


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


def _calls(calls: int | None, speed_up: float | None) -> str:
    if calls is None:
        return "-" if speed_up is None else "never"
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
    """Return text for one cell or line of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
