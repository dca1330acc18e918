"""Owns ``stats``: what the starts on this machine came to."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..console.listing import Columns, Moment, print_listing
from ..console.tables import bytes_text
from ..node.store import NodeStore, default_root
from ..wire import codec
from ..wire.durations import duration_text
from ..wire.errors import printable
from ..wire.requests.reports import STATES
from ..wire.text import count_text

_MAX_BYTES = 4000
"""Bytes of one record, at most."""
NOT_COUNTED = "a start that neither compiled nor used anything is not counted"


@dataclass(frozen=True, slots=True)
class Work:
    """Says what starts compiled and tuned, and how long they compiled and waited for their restores."""

    compilations: int = 0
    tuning_runs: int = 0
    compile_seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Holds what one start came to. ``at``: when its record began, in seconds of UTC. ``names``: those that
    were asked for. ``program``: file name of the program. ``state``: as in `outcome.judge.Report`. ``why``:
    the most important reason of a start that was no hit, or why a hit traced. ``saved``: ``None`` where it
    was not measured."""

    at: int
    names: str
    program: str
    state: str
    why: str = ""
    work: Work = Work()
    moved: int = 0
    saved: float | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state: {self.state[:40]!r}")


@dataclass(frozen=True, slots=True)
class NameStarts:
    """Sums the starts that asked for the same names, on this machine."""

    names: str
    starts: int
    hit: int
    partial: int
    inert: int
    miss: int
    work: Work
    moved: int
    saved: float
    last_seen: int


_COLUMNS: Columns = {
    "names": lambda row: row.names,
    "starts": lambda row: row.starts,
    "hit": lambda row: row.hit,
    "partial": lambda row: row.partial or "",
    "inert": lambda row: row.inert or "",
    "miss": lambda row: row.miss or "",
    "compiled": lambda row: duration_text(row.work.compile_seconds),
    "moved": lambda row: bytes_text(row.moved),
    "saved": lambda row: duration_text(row.saved),
    "last used": lambda row: Moment(row.last_seen),
}


def read_starts(root: Path) -> Iterator[StartRecord]:
    """Yield the records of a node store, the oldest first; none if the store is absent. A record that cannot
    be read is left out: the store may be older or newer than this program."""
    if not root.is_dir():
        return
    for data in NodeStore(root).starts(_MAX_BYTES):
        with suppress(ValueError):
            yield codec.build(StartRecord, codec.parse_json(data, limit=_MAX_BYTES, what="a start"))


def sum_starts(records: Iterable[StartRecord]) -> list[NameStarts]:
    """Return the sums of each group of names, the last used first."""
    groups: dict[str, list[StartRecord]] = {}
    for record in records:
        groups.setdefault(record.names, []).append(record)
    rows = [_sum(names, of_names) for names, of_names in groups.items()]
    return sorted(rows, key=lambda row: -row.last_seen)


def _sum(names: str, records: list[StartRecord]) -> NameStarts:
    states = [record.state for record in records]
    return NameStarts(
        names=names,
        starts=len(records),
        hit=states.count("hit"),
        partial=states.count("partial"),
        inert=states.count("inert"),
        miss=states.count("miss"),
        work=Work(
            sum(record.work.compilations for record in records),
            sum(record.work.tuning_runs for record in records),
            round(sum(record.work.compile_seconds for record in records), 3),
            round(sum(record.work.wait_seconds for record in records), 3),
        ),
        moved=sum(record.moved for record in records),
        saved=round(sum(record.saved or 0.0 for record in records), 3),
        last_seen=max(record.at for record in records),
    )


def last_of_name(records: Iterable[StartRecord], name: str) -> list[str]:
    """Return a line about the last start with ``name`` that compiled, and about the last hit that traced."""
    of_name = [record for record in records if name in record.names.split(", ")]
    lasts = (last for last in (_last_compiled(of_name), _last_traced(of_name)) if last is not None)
    return [_line(record) for record in sorted(lasts, key=lambda record: -record.at)]


def _last_compiled(records: Sequence[StartRecord]) -> StartRecord | None:
    return next((record for record in reversed(records) if record.state != "hit"), None)


def _last_traced(records: Sequence[StartRecord]) -> StartRecord | None:
    return next((record for record in reversed(records) if record.state == "hit" and record.why), None)


def _line(record: StartRecord) -> str:
    start = f"{record.names} ({record.program}), {Moment(record.at)}"
    if record.state == "hit":
        return printable(f"the last hit that traced: {start}: hit, but traced: {record.why}")
    return printable(f"the last that compiled: {start}: {record.state}: {record.why or 'no reason known'}")


def show(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from ..config.settings import Config
    from ..console.answers import print_json

    root = Config.read().store or default_root()
    since = time.time() - arguments.days * 86_400
    records = [record for record in read_starts(root) if record.at >= since]
    rows = sum_starts(records)
    compiled, traced = _last_compiled(records), _last_traced(records)
    if arguments.json:
        body: dict[str, Any] = {"folder": root, "days": arguments.days, "rows": rows}
        print_json("stats", {**body, "last_compiled": compiled, "last_traced": traced})
        return 0
    period = f"in the last {count_text(arguments.days, 'day')}"
    if not rows:
        print(printable(f"no start was recorded {period} in {root}; {NOT_COUNTED}"))
        return 0
    print(f"{count_text(len(records), 'start')} on this machine {period}")
    print_listing("stats", rows, _COLUMNS, whole="--json has all")
    for record in (compiled, traced):
        if record is not None:
            print(_line(record))
    return 0
