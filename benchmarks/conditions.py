"""Say under which conditions a benchmark ran: when, on what, and what of this project."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def keep(report: dict[str, Any], path: Path) -> None:
    """Write the report of a benchmark as JSON, and say where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {path}")


def hardware() -> dict[str, Any]:
    """Return the number of CPUs, their model, and the kernel."""
    return {"cpus": os.cpu_count(), "machine": _cpu_model(), "kernel": platform.release()}


def gpus() -> list[str]:
    """Return a line for each GPU of the machine: name, driver, memory."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, check=False)
    except OSError:
        return []
    return result.stdout.strip().splitlines() if result.returncode == 0 else []


def commit() -> str:
    """Return this tree's commit, with ``+`` where tracked files differ from it; empty where git or the
    repository is missing."""
    named = _git("rev-parse", "--short=10", "HEAD")
    return named + ("+" if named and _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return result.stdout.strip()


def _cpu_model() -> str:
    match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return match[1] if match else platform.machine()
