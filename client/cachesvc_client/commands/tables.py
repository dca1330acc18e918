"""Owns how the commands print rows and sizes for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..wire.errors import printable


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


def bytes_text(count: int) -> str:
    """Return a size for people, such as ``512 B`` or ``1.4 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
