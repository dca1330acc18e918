"""Says in which order a program goes through the sets that a trace made constants.

Two equal sets may have two orders, by how they were filled. Dynamo compares them as sets, and its trace goes
through them in the order of its process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..describe.digests import digest
from ..describe.objects import text_of

_CONSTANTS = ("CONSTANT_MATCH", "EQUALS_MATCH")
_MEMBERSHIP = ("SET_CONTAINS", "SET_NOT_CONTAINS")
_NUMBERS = (int, float, bool, complex)


class SetOrders:
    """Collects the orders of constant sets, by the names of their guards."""

    def __init__(self) -> None:
        self._orders: dict[str, str] = {}
        self._of_hashes: set[str] = set()
        """Names of the sets whose order is another one in each process (``PYTHONHASHSEED``)."""
        self._asked: set[str] = set()
        """Names of the sets whose members a trace asked for."""

    def note(self, guard: Any, value: Any) -> None:
        """Note the order of a set that a guard compares."""
        kind = guard.create_fn_name()
        if kind in _MEMBERSHIP:
            self._asked.add(guard.name)
        elif kind in _CONSTANTS and type(value) in (set, frozenset) and len(value) > 1:
            self._orders[guard.name] = digest(text_of([*value]))
            if not all(type(one) in _NUMBERS for one in value):
                self._of_hashes.add(guard.name)

    def orders(self, read: Collection[str]) -> dict[str, str]:
        """Return the orders by name. A set of texts has another order in each process; it is omitted if the
        trace only asked whether it contains something. ``read``: the sets that a trace went through."""
        left_out = (self._of_hashes & self._asked) - {*read}
        return {name: order for name, order in self._orders.items() if name not in left_out}

    def are(self, recorded: Mapping[str, str]) -> bool:
        """Return whether the sets have the orders that a record has."""
        return all(self._orders.get(name) == order for name, order in recorded.items())
