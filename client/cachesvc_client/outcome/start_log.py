"""Keeps the outcome of each start in the node store, for the command ``stats``.

The record stays on this machine. A process that neither compiled nor used anything leaves none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..node.store import NodeStore, default_root
from ..wire import codec
from ..wire.errors import CacheSvcError
from ..wire.reports import STATES
from .judge import Report

MAX_BYTES = 4000
"""Bytes of one record, at most."""
_MAX_TEXT = 300
"""Characters of each text of a record, at most."""


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Holds what one start came to. ``at``: when it was first recorded, in seconds of UTC. ``names``: those
    that were asked for. ``program``: file name of the program. ``state``: as in `Report`. ``why``: the most
    important reason of a start that was no hit. Sizes are bytes, times are seconds; ``saved`` is ``None``
    where it was not measured."""

    at: int
    names: str
    program: str
    state: str
    why: str = ""
    compilations: int = 0
    tuning_runs: int = 0
    compile_seconds: float = 0.0
    wait_seconds: float = 0.0
    moved: int = 0
    saved: float | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state: {self.state[:40]!r}")


class StartLog:
    """Keeps the record of this process, and replaces it when the outcome has changed."""

    def __init__(self) -> None:
        self._at = time.time()
        self._last: StartRecord | None = None

    def keep(self, report: Report, names: str, store: Path | None) -> None:
        """Keep what ``report`` says of a start that asked for ``names``. Never raises an error of the file
        system. ``store``: the node store's folder, if it is not the default one."""
        record = _record(report, names, int(self._at))
        if record.state == "unused" or record == self._last:
            return
        self._last = record
        with suppress(CacheSvcError, OSError):
            name = f"{int(self._at * 1000):013d}-{os.getpid()}"
            NodeStore(store or default_root()).keep_start(name, codec.canonical(record))


def _record(report: Report, names: str, at: int) -> StartRecord:
    observed, seconds = report.observed, report.seconds
    return StartRecord(
        at=at,
        names=names[:_MAX_TEXT],
        program=Path(sys.argv[0] if sys.argv else "").name[:_MAX_TEXT],
        state=report.state,
        why=report.reasons[0][:_MAX_TEXT] if report.reasons and report.state != "hit" else "",
        compilations=observed.compilations,
        tuning_runs=observed.tuning_runs,
        compile_seconds=round(seconds.get("compile", 0.0), 3),
        wait_seconds=round(seconds.get("wait", 0.0), 3),
        moved=report.bytes_moved,
        saved=report.saved,
    )


def read_starts(root: Path) -> Iterator[StartRecord]:
    """Yield the records of a node store, the oldest first; none if the store is absent. A record that cannot
    be read is left out: the store may be older or newer than this program."""
    if not root.is_dir():
        return
    for data in NodeStore(root).starts(MAX_BYTES):
        with suppress(ValueError):
            yield codec.build(StartRecord, codec.parse_json(data, limit=MAX_BYTES, what="a start"))
