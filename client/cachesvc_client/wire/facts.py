"""Brings facts into a form that may travel: scalars and lists of texts of a bounded length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .codec import canonical
from .digest import Digest
from .factors import Facts

MAX_LISTED = 64
"""Largest number of elements that `bounded` keeps of a list."""
MAX_TEXT = 200
"""Largest number of characters that `bounded` keeps of a text."""


def bounded(facts: Mapping[str, Any]) -> Facts:
    """Returns facts in the form that may travel: scalars and lists of texts, none longer than ``MAX_TEXT`` or
    ``MAX_LISTED``. A longer list ends with a digest of the rest, so that two different lists stay different.
    Values of other types are omitted."""
    bounded_facts: Facts = {}
    for name, value in facts.items():
        if isinstance(value, (bool, int)):
            bounded_facts[name] = value
        elif isinstance(value, str):
            bounded_facts[name] = _cut(value)
        elif isinstance(value, (list, tuple, set, frozenset)):
            texts = sorted({str(item) for item in value})
            rest = texts[MAX_LISTED - 1 :] if len(texts) > MAX_LISTED else []
            first = texts[: MAX_LISTED - 1] if rest else texts
            tail = [f"and {len(rest)} more, {Digest.of(canonical(rest))[:23]}"] if rest else []
            bounded_facts[name] = [*map(_cut, first), *tail]
    return bounded_facts


def union(fact_sets: Iterable[Mapping[str, Any]]) -> Facts:
    """Joins several sets of facts, such as those of the graphs of a process or of the ranks of a job: each
    fact gets all values that it has in any set. The result is `bounded`."""
    all_values: dict[str, set[str]] = {}
    for facts in fact_sets:
        for name, value in facts.items():
            values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
            all_values.setdefault(name, set()).update(map(str, values))
    return bounded(all_values)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[: MAX_TEXT - 24]} {Digest.of(text.encode('utf-8', 'replace'))[:23]}"
