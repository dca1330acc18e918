"""On which line a key of a TOML document stands. ``tomllib`` parses, but does not tell.

No parser of its own: the document is cut into statements (a header, or a key with its value), each
of which ``tomllib`` reads alone. It was parsed as a whole before, so it is known to be well formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tomllib

KeyPath = tuple[str | int, ...]


def lines_of(text: str) -> dict[KeyPath, int]:
    """The first line (from 1) of every table and key; items of arrays of tables by their index."""
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, statement, parsed in _statements(text):
        if statement.startswith("["):
            table = _enter(parsed, statement.startswith("[["), counts)
            _note(found, table, number)
        else:
            for path in _paths(parsed):
                _note(found, table + path, number)
    return found


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """The line of ``path``, or of the nearest key around it."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(line number, text, what it says alone); a value of several lines is joined until it parses."""
    begin, held = 1, ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not held.strip():
            begin, held = number, ""
        held += line
        try:
            parsed = tomllib.loads(held)
        except tomllib.TOMLDecodeError:
            continue
        if parsed:
            yield begin, held.lstrip(), parsed
        held = ""


def _paths(value: object) -> Iterator[KeyPath]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield (key,)
            yield from ((key, *path) for path in _paths(item))


def _enter(parsed: dict[str, Any], is_array: bool, counts: dict[KeyPath, int]) -> KeyPath:
    """The full path of a header: a name of an array of tables is followed by the last item's index."""
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


def _note(found: dict[KeyPath, int], path: KeyPath, line: int) -> None:
    for end in range(1, len(path) + 1):
        found.setdefault(path[:end], line)
