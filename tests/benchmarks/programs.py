"""Run a benchmark as its own program, as a user does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks import hosts


def run_quick(program: str, folder: Path, *options: str) -> Path:
    """Run a program of ``benchmarks/`` with ``--quick`` in a folder. Return the JSON that it wrote."""
    report = folder / "results" / "report.json"
    command = [sys.executable, str(hosts.ROOT / "benchmarks" / program), "--quick", "--json", str(report)]
    result = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=500, cwd=folder, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return report
