"""Says which names of a frame's guards lead to one object, and which to several.

Dynamo guards that two names lead to one object, and not that they lead to two; and two objects may have the
same words. A trace that asks ``a is b``, or writes to ``a`` and reads ``b``, has another answer where the two
are one.
"""

from __future__ import annotations

from typing import Any

from ....graphs.code.constants import PLAIN


class SameObjects:
    """Numbers objects, each once, in the order in which guards name them. ``numbers``: those of all names."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._known: dict[int, tuple[int, Any]] = {}
        """Address -> number and object. The object is kept, so that no other one gets its address."""
        self._names: set[str] = set()

    def note(self, name: str, value: Any) -> None:
        """Number the object of a name, its class, and the classes that this is made of."""
        if name in self._names or _is_a_value(value):
            return
        self._names.add(name)
        self._number(value)
        for kind in (value, type(value)):
            if isinstance(kind, type) and self._number(kind):
                for base in kind.__mro__[1:]:
                    self._number(base)

    def _number(self, value: Any) -> bool:
        """Number an object; return whether it is new."""
        known = self._known.get(id(value))
        number, _ = self._known[id(value)] = known or (len(self._known), value)
        self.numbers.append(number)
        return known is None


def _is_a_value(value: Any) -> bool:
    """Return whether an object is told by its value alone: Python may make one or several of it."""
    return type(value) in (*PLAIN, tuple, frozenset, type(None)) and bool(value == value)
