"""Run the rows of a benchmark of nodes, and write them with date, commit and hardware."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.conditions import commit, hardware, keep, now
from benchmarks.hosts import Failed, use_this_tree
from cachesvc.cli.signals import interruptible


def report_rows(path: Path, measure: Callable[[Path], list[dict[str, Any]]]) -> int:
    """Write what ``measure`` returns, given an empty folder that other users may enter, as JSON to ``path``.

    Return the exit status: 0; 1 if a row has something in ``broken``; 2 if a step failed.
    """
    use_this_tree()
    report: dict[str, Any] = {"date": now(), "commit": commit(), "hardware": hardware(), "rows": []}
    try:
        with interruptible(), tempfile.TemporaryDirectory(prefix="cachesvc-node-") as folder:
            Path(folder).chmod(0o755)  # services of other users reach the store of the agent
            report["rows"] = measure(Path(folder))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    keep(report, path)
    return int(any(row["broken"] for row in report["rows"]))
