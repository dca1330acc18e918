"""Keeps the outcome of each start in the node store, for the command ``stats``.

The record stays on this machine. A process that neither compiled nor used anything leaves none. This module
is imported when a process ends, where it must run no text as code, as a dataclass does when its class is
made: Python 3.11 then forgets that Ctrl-C ended the process, and exits with status 1
(``run_eval_code_obj``, Python/pythonrun.c).
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..node.store import NodeStore
from ..node.store_root import store_root
from ..wire import codec
from ..wire.errors import CacheSvcError
from .judge import Report

_MAX_TEXT = 300
"""Characters of each text of a record, at most."""


class StartLog:
    """Keeps the record of this process, and replaces it when the outcome has changed."""

    def __init__(self) -> None:
        self._at = time.time()
        self._last: dict[str, Any] = {}

    def keep(self, report: Report, names: str, store: Path | None) -> None:
        """Keep what ``report`` says of a start that asked for ``names``. Never raises an error of the file
        system. ``store``: the node store's folder, if it is not the default one."""
        record = _record(report, names, int(self._at))
        if report.state == "unused" or record == self._last:
            return
        self._last = record
        with suppress(CacheSvcError, OSError):
            name = f"{int(self._at * 1000):013d}-{os.getpid()}"
            NodeStore(store_root(store)).keep_start(name, codec.canonical(record))


def _record(report: Report, names: str, at: int) -> dict[str, Any]:
    """Return the fields of a `commands.stats.StartRecord`."""
    observed, seconds = report.observed, report.seconds
    return {
        "at": at,
        "names": names[:_MAX_TEXT],
        "program": Path(sys.argv[0] if sys.argv else "").name[:_MAX_TEXT],
        "state": report.state,
        "why": (report.traced if report.state == "hit" else next(iter(report.reasons), ""))[:_MAX_TEXT],
        "work": {
            "compilations": observed.compilations,
            "tuning_runs": observed.tuning_runs,
            "compile_seconds": round(seconds.get("compile", 0.0), 3),
            "wait_seconds": round(seconds.get("wait", 0.0), 3),
        },
        "moved": report.bytes_moved,
        "saved": report.saved,
    }
