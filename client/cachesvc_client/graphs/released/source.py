"""Reads what the text of a module of torch defines, imports and puts under a name."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator


class Source:
    """Holds what the text of one module defines and names.

    ``functions`` and ``classes``: what it defines at its left margin.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        text = b"\n" + self._read()
        self.functions = {part[: part.find(b"(")].decode() for part in text.split(b"\ndef ")[1:]}
        parts = text.split(b"\nclass ")[1:]
        self.classes = {re.split(rb"[(:\[]", part[:80], maxsplit=1)[0].decode() for part in parts}

    def _read(self) -> bytes:
        try:
            with open(self._file, "rb") as file:
                return file.read()
        except OSError:
            return b""

    @functools.cached_property
    def text(self) -> str:
        """Return the module's text; an empty one where there is no file."""
        return self._read().decode("utf-8", "replace")

    @functools.cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Return the names that the text imports from other modules: name here -> module and name there."""
        found = {}
        for module, names in re.findall(r"from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)", self.text):
            for part in re.sub(r"#[^\n]*", "", names).strip("()").split(","):
                there, _, here = part.strip().partition(" as ")
                found[here.strip() or there] = (module, there.strip())
        return found

    @functools.cached_property
    def decorators(self) -> dict[str, str]:
        """Return the lines between the definition before a function and the function, by its name."""
        found: dict[str, str] = {}
        for part in self.text.split("\n\n\n"):
            lines, separator, rest = f"\n{part}".partition("\ndef ")
            if separator:
                found.setdefault(rest[: rest.find("(")], lines)
        return found

    @functools.cached_property
    def stars(self) -> list[str]:
        """Return the modules of which the text imports everything."""
        return re.findall(r"from\s+([\w.]+)\s+import \*", self.text)

    @functools.cached_property
    def makes_names(self) -> bool:
        """Return whether the text makes names that it does not write down."""
        return "globals()" in self.text or "setattr(" in self.text or "vars()" in self.text

    def names_together(self, name: str, others: set[str]) -> bool:
        """Return whether one statement has a name and one of the others."""
        return together(self.text, name, others)


def words(text: str, name: str) -> Iterator[int]:
    """Yield the places of a word in a text."""
    place = text.find(name)
    while place >= 0:
        end = place + len(name)
        before, after = text[place - 1 : place], text[end : end + 1]
        if not (before.isalnum() or before == "_" or after.isalnum() or after == "_"):
            yield place
        place = text.find(name, end)


def together(text: str, name: str, others: set[str]) -> bool:
    """Return whether a statement of a text puts something of the other names under a name."""
    for place in words(text, name):
        rest = text[place + len(name) : place + len(name) + 300]
        put = (
            rest.lstrip("\"'] ")[:1] in ("=", ":", ",")
            or text[place - 3 : place] == "as "
            or text[place - 1] in "\"'"
        )
        if not put:
            continue
        line = _statement(text, place)
        if not others.isdisjoint(re.findall(r"\w+", line)):
            return True
    return False


def _statement(text: str, place: int) -> str:
    """Return the line of a place in a text, with up to three lines after it that lie deeper."""
    begin, end = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    margin = len(text[begin:place]) - len(text[begin:place].lstrip())
    for _ in range(3):
        following = text[end + 1 : end + 2 + margin]
        if end < 0 or following.strip():
            break
        end = text.find("\n", end + 1)
    return text[begin : end if end >= 0 else None]


def assigned(text: str, name: str) -> bool:
    """Return whether a text assigns a value to a name."""
    return any(
        text[place + len(name) :].lstrip()[:1] in ("=", ":", ",")
        or text[max(0, place - 4) : place] in ("for ", " as ")
        for place in words(text, name)
    )


@functools.cache
def source(file: str) -> Source:
    """Return what a module's file defines and names."""
    return Source(file)


@functools.cache
def in_class(file: str, qualified: str) -> str:
    """Return the part of a module's text that defines a class; an empty text if it has none of that name."""
    text, name = source(file).text, qualified.rpartition(".")[2]
    for place in words(text, name):
        margin = text[text.rfind("\n", 0, place) + 1 : place - len("class ")]
        if text[place - len("class ") : place] == "class " and not margin.strip():
            break
    else:
        return ""
    end = _next_statement(margin).search(text, place)
    return text[place : end.start() if end else len(text)]


@functools.cache
def _next_statement(margin: str) -> re.Pattern[str]:
    return re.compile(rf"\n{margin}(?:class |def |@|async def |if |for )")


def has_name(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None
