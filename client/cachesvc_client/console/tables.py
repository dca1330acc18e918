"""Owns how the commands print rows and sizes for people."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence

from ..wire.durations import duration_text
from ..wire.errors import printable
from ..wire.factors import Fingerprint

_LEAST_WIDTH = 12
"""Characters that a column has at least, however narrow the terminal is."""


def aligned(rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Return lines whose columns have equal widths, two spaces apart; the last column has any width.

    Cells come from registries and bundles, and go to a terminal: what is not printable becomes ``?``.
    """
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    if not texts:
        return ""
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]) - 1)]
    lines = []
    for row in texts:
        padded = [cell.ljust(width) for cell, width in zip(row, widths)]  # noqa: B905 - all but the last
        lines.append((indent + "  ".join([*padded, row[-1]])).rstrip())
    return "\n".join(lines)


def fitting(
    rows: Sequence[Sequence[object]], width: int, drop_first: Sequence[str]
) -> tuple[list[list[object]], list[str]]:
    """Return a table, whose first row has the headings, in at most ``width`` columns of a terminal, and the
    headings that were left out for that.

    ``drop_first``: headings that are left out, in this order, until the rest fits. A column that is empty is
    always left out. The others stay: a table of them may be wider.
    """
    columns = [list(column) for column in zip(*rows) if any(str(cell) for cell in column[1:])]  # noqa: B905
    widths = {str(column[0]): max(len(printable(str(cell))) for cell in column) for column in columns}
    dropped: list[str] = []
    for heading in drop_first:
        if sum(widths.values()) + 2 * (len(widths) - 1) <= width:
            break
        if widths.pop(heading, None) is not None:
            dropped.append(heading)
    left = [column for column in columns if str(column[0]) in widths]
    return [list(row) for row in zip(*left)], dropped  # noqa: B905


def shortened(rows: Sequence[Sequence[object]], width: int) -> tuple[list[list[str]], list[str]]:
    """Return a table in at most ``width`` columns of a terminal, and the headings of the columns whose values
    were cut for that, which end with ``…``.

    The first row has the headings. The widest column is cut first, the first one never, and none to fewer
    than 12 characters.
    """
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts)]  # noqa: B905
    needed = list(widths)
    while len(widths) > 1 and sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(range(1, len(widths)), key=widths.__getitem__)
        if widths[widest] <= _LEAST_WIDTH:
            break
        widths[widest] -= 1
    cut = [texts[0][place] for place, before in enumerate(needed) if widths[place] < before]
    return [[_cut(text, most) for text, most in zip(row, widths)] for row in texts], cut  # noqa: B905


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def terminal_width() -> int:
    """Return the columns of the terminal. A pipe takes any width, unless COLUMNS says otherwise."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return sys.maxsize
    return shutil.get_terminal_size().columns


def bytes_text(count: int) -> str:
    """Return a size for people, such as ``512 B`` or ``1.4 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def time_text(seconds: int | None) -> str:
    """Return a time, in seconds of UTC, as text with minutes and zone; nothing for ``None``."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def when_text(seconds: int | None, now: float) -> str:
    """Return a time, in seconds of UTC, with its distance from ``now``; nothing for ``None``."""
    return "" if seconds is None else f"{time_text(seconds)}, {distance_text(seconds, now)}"


def distance_text(seconds: int | None, now: float) -> str:
    """Return how far a time, in seconds of UTC, is from ``now``: ``3.0 h ago``, ``in 5.2 d``; nothing for
    ``None``."""
    if seconds is None:
        return ""
    ahead = seconds - now
    if abs(ahead) < 1:
        return "now"
    return f"in {duration_text(ahead)}" if ahead > 0 else f"{duration_text(-ahead)} ago"


def environment_label(facts: Fingerprint) -> tuple[str, str, str]:
    """Return torch, device and interpreter of an environment, as tables show them."""
    device = facts.get("gpu") or f"cpu {facts.get('cpu_isa', '')}".rstrip()
    return str(facts.get("torch", "-")), str(device), str(facts.get("python_abi", "-"))
