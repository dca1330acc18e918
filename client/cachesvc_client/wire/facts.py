"""Brings facts into a form that may travel: scalars and lists of texts of a bounded length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .codec import canonical
from .digest import Digest
from .factors import Facts

MAX_LISTED = 64
"""Elements that `bounded` keeps of a list, at most."""
MAX_TEXT = 200
"""Characters that `bounded` keeps of a text, at most."""


def bounded(facts: Mapping[str, Any]) -> Facts:
    """What is read here as facts that may travel: scalars and lists of texts, none longer than
    ``MAX_TEXT`` or ``MAX_LISTED``. A list that is longer ends with a digest of the rest, so that two
    different ones stay different; what is neither is left out."""
    made: Facts = {}
    for name, value in facts.items():
        if isinstance(value, (bool, int)):
            made[name] = value
        elif isinstance(value, str):
            made[name] = _cut(value)
        elif isinstance(value, (list, tuple, set, frozenset)):
            texts = sorted({str(item) for item in value})
            rest = texts[MAX_LISTED - 1 :] if len(texts) > MAX_LISTED else []
            kept = texts[: MAX_LISTED - 1] if rest else texts
            tail = [f"and {len(rest)} more, {Digest.of(canonical(rest))[:23]}"] if rest else []
            made[name] = [*map(_cut, kept), *tail]
    return made


def union(every: Iterable[Mapping[str, Any]]) -> Facts:
    """All values that each fact has in any of ``every``: of the graphs of a process, of the ranks of a job;
    `bounded`."""
    made: dict[str, set[str]] = {}
    for facts in every:
        for name, value in facts.items():
            values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
            made.setdefault(name, set()).update(map(str, values))
    return bounded(made)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[: MAX_TEXT - 24]} {Digest.of(text.encode('utf-8', 'replace'))[:23]}"
