"""Print the table of docs/benchmarks.md from the result of ``python -m benchmarks.init``."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.hosts import ROOT

RESULT = ROOT / "benchmarks" / "results" / "init.json"
HEAD = "| program | built by | init | warm | a start of the program |\n|---|---|---:|---:|---|\n"


def table(report: dict[str, Any]) -> str:
    """Return a row for each program: what builds its targets, seconds, and how it started."""
    return HEAD + "".join(map(_row, report["programs"]))


def _row(row: dict[str, Any]) -> str:
    made = {
        "the script" if built.startswith("script ") else _short(built) for built in row["targets"].values()
    }
    state = row["start"].partition(":")[0] if row["green"] else "**red**"
    seconds = f"{row['init_seconds']:.0f} s | {row['warm_seconds']:.0f} s"
    return f"| `{row['program']}` | {', '.join(sorted(made))} | {seconds} | {state} |\n"


def _short(built: str) -> str:
    module, _, name = built.partition(":")
    return f"`{module.partition('.')[0]}…{name}`" if "." in module else f"`{built}`"


if __name__ == "__main__":
    print(table(json.loads(RESULT.read_text())))
