"""Helpers of the generated pages in docs/: tables, and the texts that stand in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
END = "<!-- End of what is generated. -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table. A ``|`` in a cell is escaped, a line break becomes a space."""
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell_text(cell) for cell in line) + " |" for line in lines]


def cell_text(text: str) -> str:
    """``text`` as it may stand in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def single_quoted(text: str) -> str:
    """A docstring's ``code`` as Markdown's `code`."""
    return text.replace("``", "`")


def generated(source: str) -> str:
    """The comment that tells where a page comes from and how it is made again."""
    return f"<!-- Generated from {source} by `make pages`. Do not edit. -->"


def with_section(page: str, source: str, lines: Iterable[str]) -> str:
    """The page with other lines between the comment of `generated` and `END`."""
    begin = generated(source)
    head, _, rest = page.partition(begin)
    return head + "\n".join([begin, "", *lines, "", END]) + rest.partition(END)[2]
