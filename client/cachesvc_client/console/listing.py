"""Print rows of a registry: as a table that fits the terminal, as a wide one, as CSV or as JSON."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from ..wire.errors import printable
from .answers import print_json
from .tables import aligned, distance_text, fitting, shortened, terminal_width, time_text

Form = Literal["table", "wide", "json", "csv"]
Columns = Mapping[str, Callable[[Any], object]]
"""The headings of a table, and how each cell is made of a row."""
_DROP_FIRST = (
    *("files", "by", "minutes", "audience", "created", "head", "signed", "torch", "requires", "published"),
    *("keep days", "keep revisions", "unused days", "size", "keep bytes", "device", "used", "bytes of"),
    *("last used", "to compile", "before", "since", "expires", "details", "label"),
)
"""Headings of the columns that a narrow terminal does without, in this order."""


class Moment(int):
    """A time in seconds of UTC. As text it is its distance from now, since people compare times in tables."""

    def __str__(self) -> str:
        return distance_text(int(self), time.time())


def moment(seconds: int | None) -> Moment | str:
    """Return the cell of a time; nothing for ``None``."""
    return "" if seconds is None else Moment(seconds)


def digest_text(digest: str | None) -> str:
    """Return the first 12 hex digits of a digest: commands accept them in place of the whole."""
    return digest.removeprefix("sha256:")[:12] if digest else ""


def name_text(row: Any) -> str:
    """Return the ``namespace/name:tag`` of a row, and its lane if it has one."""
    return f"{row.namespace}/{row.name}:{row.tag}" + _lane_text(row)


def name_and_lane(row: Any) -> str:
    """Return the ``namespace/name`` of a row, and its lane if it has one."""
    return f"{row.namespace}/{row.name}" + _lane_text(row)


def _lane_text(row: Any) -> str:
    lane = getattr(row, "lane", None)
    return f" [{lane}]" if lane else ""


def print_listing(
    command: str,
    rows: Sequence[Any],
    columns: Columns,
    form: Form = "table",
    if_empty: str = "none",
    whole: str = "-o wide shows all",
) -> None:
    """Print a table with headings, or an answer of ``command`` in JSON with ``rows``, or CSV; where there are
    no rows, the line ``if_empty``.

    A table fits the terminal: columns that are needed less are left out, others are cut, and both are named
    on stderr with ``whole``, which says how to get all of them.
    """
    if form == "json":
        print_json(command, {"rows": rows})
        return
    cells: list[list[object]] = [[*columns], *([cell(row) for cell in columns.values()] for row in rows)]
    if form == "csv":
        texts = ([time_text(cell) if isinstance(cell, Moment) else cell for cell in row] for row in cells)
        csv.writer(sys.stdout, lineterminator="\n").writerows(texts)
        return
    if not rows:
        print(printable(if_empty))
        return
    width = sys.maxsize if form == "wide" else terminal_width()
    table, dropped = fitting(cells, width, _DROP_FIRST)
    shown, cut = shortened(table, width)
    print(aligned(shown))
    losses = {"not shown": dropped, "cut": cut}
    if lost := [f"{word}, for want of room: {', '.join(names)}" for word, names in losses.items() if names]:
        print(printable(f"{'; '.join(lost)}; {whole}"), file=sys.stderr)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print a line for each known fact of one thing."""
    print(aligned([(name, value) for name, value in facts if value not in (None, "")]))
