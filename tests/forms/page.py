"""Writes docs/forms.md, the table of forms, from the results of the runs."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.hosts import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "forms.json"
PAGE = ROOT / "docs" / "forms.md"
_MARKS = {"recorded": "no trace", "refused": "traces", "wrong": "WRONG", "error": "does not run"}
_MOST = 200
"""Letters of a reason that the page shows."""
_HEAD = """# Which programs start without traces

Each form is a few lines of a program, run in three fresh processes on a CPU: one compiles, one records as
[`warm`](warm.md#starts-without-tracing) does, and a service answers. *No trace*: the service traced and
compiled nothing, and its outputs are the builder's bits. *Traces*: it traced, with right outputs, and the
reason is below the table. `make forms` runs them again.

<!-- Generated from benchmarks/results/forms.json by `make forms`. Do not edit. -->

"""
_END = "<!-- End of what is generated. -->"


def write() -> None:
    """Write the page."""
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


def page(report: dict[str, Any]) -> str:
    """Return the page for the results of some versions of torch."""
    versions = sorted(report, key=lambda version: [*map(int, version.split("."))])
    forms: dict[str, dict[str, Any]] = {}
    for version in reversed(versions):
        for name, row in report[version]["forms"].items():
            forms.setdefault(name, {})[version] = row
    lines = [_line(version, report[version]) for version in versions]
    for group in dict.fromkeys(next(iter(rows.values()))["group"] for rows in forms.values()):
        of_group = {name: rows for name, rows in forms.items() if next(iter(rows.values()))["group"] == group}
        lines += ["", *_table(group, of_group, versions)]
    return _HEAD + "\n".join([*lines, "", _END]) + "\n"


def _line(version: str, of_version: dict[str, Any]) -> str:
    """Return the counts of a version, with its date and the sources on which its rows were made."""
    rows = of_version["forms"].values()
    sources = ", ".join(dict.fromkeys(row["source"] for row in rows))
    return f"- torch {version}, {of_version['date'][:10]}: {_counts(rows)}\n  (source {sources})"


def _counts(rows: Any) -> str:
    outcomes = [row["outcome"] for row in rows]
    told = [f"{outcomes.count(name)} {words}" for name, words in _MARKS.items() if name != "wrong"]
    return ", ".join([f"{len(outcomes)} forms", *told, f"{outcomes.count('wrong')} wrong"])


def _table(group: str, forms: dict[str, dict[str, Any]], versions: list[str]) -> list[str]:
    head = " | ".join(["form", *(f"torch {version}" for version in versions)])
    lines = [f"## {group[0].upper()}{group[1:]}", "", f"| {head} |", "|---" * (len(versions) + 1) + "|"]
    notes = []
    for rows in forms.values():
        words = next(iter(rows.values()))["form"]
        cells = [_MARKS[rows[version]["outcome"]] if version in rows else "" for version in versions]
        lines.append(f"| {words} | {' | '.join(cells)} |")
        reasons = {_shown(row["why"]): None for row in rows.values() if row["why"]}
        notes += [f"| {words} | {reason} |" for reason in reasons]
    return [*lines, *(["", "| traces | because |", "|---|---|"] if notes else []), *notes]


def _shown(why: str) -> str:
    text = why if len(why) <= _MOST else why[:_MOST].rpartition(" ")[0] + " …"
    return "`" + text.replace("`", "'").replace("|", "/") + "`"


if __name__ == "__main__":
    write()
