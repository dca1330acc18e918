"""Find the line of each key of a TOML document, which ``tomllib`` does not report.

This is no parser: it cuts the document into statements (a header, or a key with its value), each of which
``tomllib`` reads alone. The document was parsed as a whole before, so it is well formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tomllib

KeyPath = tuple[str | int, ...]
"""Keys from the document's root inwards; an index for an item of an array of tables."""


def lines_of(text: str) -> dict[KeyPath, int]:
    """Return the first line (from 1) of every table and key."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, statement, parsed in _statements(text):
        if statement.startswith("["):
            table = _enter(parsed, statement.startswith("[["), counts)
            _add(lines, table, number)
        else:
            for path in _paths(parsed):
                _add(lines, table + path, number)
    return lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of ``path``, or of the nearest key around it."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (first line, text, its own document) of each statement; lines are joined until they parse."""
    begin, statement = 1, ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not statement.strip():
            begin, statement = number, ""
        statement += line
        try:
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        if parsed:
            yield begin, statement.lstrip(), parsed
        statement = ""


def _paths(value: object) -> Iterator[KeyPath]:
    """Yield the paths of a value's keys, outer ones first."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (key,)
            yield from ((key, *path) for path in _paths(item))


def _enter(parsed: dict[str, Any], is_array: bool, counts: dict[KeyPath, int]) -> KeyPath:
    """Return the full path of a header; the index of the last item follows the name of an array of tables."""
    names: list[str] = []
    inner: Any = parsed
    while isinstance(inner, dict) and inner:
        name, inner = next(iter(inner.items()))
        names.append(name)
    path: KeyPath = ()
    for position, name in enumerate(names):
        path = (*path, name)
        if is_array and position == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _add(lines: dict[KeyPath, int], path: KeyPath, line: int) -> None:
    """Add a path and the paths around it, but those that have a line."""
    for end in range(1, len(path) + 1):
        lines.setdefault(path[:end], line)
