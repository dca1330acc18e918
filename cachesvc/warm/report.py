"""Outcomes -> table rows, plain lines, JSON and Markdown. Pure; `cachesvc.cli.warm` prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from cachesvc_client.wire.codec import plain
from cachesvc_client.wire.errors import NotWarm

from .plan import Job
from .results import Outcome

FORMAT = "cachesvc.warm/1"

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
"""Of every form. Times are sums over the target's input sets; *before -> after* trimming."""

_SHORT = ("target", "status", "first call", "restored first", "steady", "eager steady", "speed-up")
_SHORT_TAIL = ("restored break-even", "graph breaks", "files", "pack", "difference")
TERMINAL_COLUMNS = (*_SHORT, *_SHORT_TAIL)
"""What fits on a terminal; everything is in the Markdown and the JSON."""


def exit_status(outcomes: Iterable[Outcome]) -> int:
    """0 if all are warm or fresh; 130 if the run was interrupted; an error that was not a target's own
    (registry, signing key, disk) with its status; otherwise 9."""
    listed = list(outcomes)
    if all(outcome.good for outcome in listed):
        return 0
    if any(outcome.status == "cancelled" for outcome in listed):
        return 130
    statuses = {outcome.error_status or NotWarm.exit_status for outcome in listed if not outcome.good}
    return statuses.pop() if len(statuses) == 1 else NotWarm.exit_status


def cells(outcome: Outcome) -> dict[str, str]:
    """Every column as text; ``-`` for what was not measured."""
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
    """What a table has no room for: reasons, graph breaks, recompiles, notes, and where it went."""
    told = [f"not warm: {reason}" for reason in outcome.reasons if not outcome.good]
    told += [reason for reason in outcome.reasons if outcome.good]
    for item in outcome.graph_breaks:
        times = f" ({item.count} times)" if item.count > 1 else ""
        told.append(f"graph break{times} at {item.where or 'an unknown line'}: {item.reason}")
    told += [f"recompiled {reason}" for reason in outcome.recompiles]
    told += [f"inputs {name!r}: {item.note}" for name, item in outcome.compared.items() if item.note]
    told += ["tuning results are part of the entry (finalised)"] if outcome.finalised else []
    told += list(outcome.notes)
    told += [f"published as {outcome.revision}"] if outcome.revision else []
    told += [f"written to {outcome.bundle}"] if outcome.bundle else []
    return told


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Plain lines for CI: each target with all its columns, its details, and a summary."""
    made = []
    for outcome in outcomes:
        shown = cells(outcome)
        pairs = [f"{name} {shown[name]}" for name in COLUMNS[2:] if shown[name] not in ("-", "0", "0 B")]
        made.append(f"{outcome.target}: {outcome.status}" + (": " + ", ".join(pairs) if pairs else ""))
        made += [f"  {line}" for line in details(outcome)]
    return [*made, summary(outcomes)]


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line: how many of how many."""
    good = sum(outcome.good for outcome in outcomes)
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _STATUSES}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{good} of {len(outcomes)} targets are warm ({told})"


_STATUSES = ("warm", "fresh", "cold", "failed", "cancelled")


def document(name: str, spec: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The JSON form: seconds and bytes as numbers. Numbers that JSON lacks become ``null``."""
    made = {
        "format": FORMAT,
        "name": name,
        "spec": spec,
        "warm": all(outcome.good for outcome in outcomes),
        "exit_status": exit_status(outcomes),
        "targets": [plain(outcome) for outcome in outcomes],
    }
    cleaned: dict[str, Any] = _finite(made)
    return cleaned


def markdown(name: str, outcomes: Sequence[Outcome]) -> str:
    """A report for a pull request or a job's summary."""
    rows = [cells(outcome) for outcome in outcomes]
    text = [f"# Warm report: {name}", "", summary(outcomes) + ".", ""]
    text.append("| " + " | ".join(COLUMNS) + " |")
    text.append("|---|---|" + "---:|" * (len(COLUMNS) - 2))
    text += ["| " + " | ".join(_escaped(row[column]) for column in COLUMNS) + " |" for row in rows]
    for outcome in outcomes:
        told = details(outcome)
        if told:
            text += ["", f"## {outcome.target}", ""]
            text += [f"- {_escaped(line)}" for line in told]
    return "\n".join([*text, ""])


def planned(jobs: Sequence[Job]) -> list[str]:
    """The plan of a dry run: a line for each job, and what it would be compiled with."""
    made = []
    for job in jobs:
        spec = job.spec
        source = spec.factory or " ".join([spec.script, *spec.args])
        inputs = f", inputs {', '.join(spec.inputs)}" if spec.inputs else ""
        options = ", ".join(f"{key}={_plain_text(value)}" for key, value in job.options.items())
        kind = "script" if job.is_script else spec.kind
        made.append(f"{job.target}: {kind} of {source}{inputs} ({options})")
    return [*made, f"{len(jobs)} entries would be made"]


def seconds(value: float | None) -> str:
    """Three digits: ``28.4 s``, ``12.3 ms``, ``45.6 us``."""
    if value is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1 or unit == "us":
            break
    scaled = value * factor
    return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


def size(value: int) -> str:
    """Decimal units, as disks and networks count: ``1.26 MB``."""
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
    """The worst input set, as the share of what is allowed there."""
    measured = [item for item in outcome.compared.values() if not item.note]
    if not measured:
        return "-"
    worst = max(measured, key=lambda item: (not item.passed, item.difference))
    return f"{worst.difference:.2g} of {worst.allowed:.2g}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _plain_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
