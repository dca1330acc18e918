"""Read parts of the project's Markdown documents."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(path: Path, title: str) -> str:
    """Return the text below the heading ``## title``, up to the next heading of that level."""
    parts = re.split(r"^## (.+)$", path.read_text("utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return sections[title]


def blocks(text: str, language: str) -> list[str]:
    """Return the contents of the fenced blocks of one language, in order."""
    return [body for name, body in _FENCE.findall(text) if name == language]


def fenced(text: str) -> list[str]:
    """Return the contents of all fenced blocks that may hold commands, in order."""
    return [body for name, body in _FENCE.findall(text) if name in ("", "sh", "yaml")]


def prose(text: str) -> str:
    """Return ``text`` without its fenced blocks and comments; the number of lines stays."""
    text = re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def units(text: str) -> list[str]:
    """Return the paragraphs, list items and table rows of a page."""
    return re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\|)", text)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {re.sub(r"\s+", "-", heading.strip()) for heading in plain}
