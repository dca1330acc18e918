"""Sees which of a program's sets and dictionaries a trace reads as a whole, and not by a key that it names.

Dynamo's variables for these have their members as an attribute, from which all of its code reads, and not all
of that code adds a guard: none says that ``[*d]`` read the keys of ``d``, nor that a trace went through a
constant set. So each reader of that attribute counts, but for those that are known to ask for one key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from ....hooks import imports
from .traced_reads import TracedReads

_ITEMS = "items"
_PASSES_ON = frozenset({"__getattr__", "set_items", "as_python_constant", "realize"})
"""Functions that read the members for their caller. The last ones may go through the members of a tuple."""
_BY_KEY = frozenset({
    *("__init__", "__contains__", "sq_contains", "is_new_item", "has_new_items", "debug_repr", "is_empty"),
    *("getitem_const", "getitem_const_raise_exception_if_absent", "maybe_getitem_const", "realize_key_vt"),
    *("install_set_contains_guard", "install_dict_contains_guard", "constant_of"),
    "is_python_constant",
})  # fmt: skip
"""Functions of Dynamo's that make a variable, or ask it for one key; and ours, which only observe."""


class ContainerReads:
    """Sees reads of whole containers, and has Dynamo guard the keys of dictionaries."""

    def __init__(self, now: list[TracedReads], on_missing: Callable[[str], None]) -> None:
        """``now``: the reads of the traces that run, the innermost last. ``on_missing`` is told the name of a
        variable that this torch does not have."""
        self._now, self._on_missing = now, on_missing

    def install(self) -> None:
        """Watch the variables for sets and dictionaries."""
        imports.when_imported("torch._dynamo.variables", self._watch)

    def _watch(self, variables: ModuleType) -> None:
        for name in ("ConstDictVariable", "SetVariable", "FrozensetVariable"):
            kind = getattr(variables, name, None)
            if kind is None:
                self._on_missing(f"{variables.__name__}.{name}")
            else:
                kind.items = _Items(self)

    def note(self, variable: Any, reader: FrameType) -> None:
        """Note that a function of Dynamo's reads the members of a variable."""
        source = variable.__dict__.get("source")
        if source is None or not self._now or _asks_for_a_key(reader):
            return
        try:
            name = source.name
        except NotImplementedError:  # an object that the trace made (`TempLocalSource`): nothing to compare
            return
        reads = self._now[-1]
        if hasattr(type(variable), "set_items"):
            reads.sets.add(name)
            return
        try:
            variable.install_dict_keys_match_guard()
        except Exception:  # noqa: BLE001 - whatever Dynamo raises where it takes no guard
            reads.refuse(f"nothing compares the keys of {name}")

    def refuse(self, error: Exception) -> None:
        """Refuse to record the frame, since a read of a container could not be noted."""
        self._now[-1].refuse(f"a read of a container could not be noted: {type(error).__name__}")


class _Items:
    """Is the attribute of a variable that has its members."""

    def __init__(self, reads: ContainerReads) -> None:
        self._reads = reads

    def __get__(self, variable: Any, _: Any = None) -> Any:
        if variable is None:
            return self
        try:
            items = variable.__dict__[_ITEMS]
        except KeyError:
            raise AttributeError(_ITEMS) from None
        try:
            self._reads.note(variable, sys._getframe(1))
        except Exception as error:  # noqa: BLE001 - the trace goes on, whatever another torch has here
            self._reads.refuse(error)
        return items

    def __set__(self, variable: Any, items: Any) -> None:
        variable.__dict__[_ITEMS] = items


def _asks_for_a_key(reader: FrameType | None) -> bool:
    """Return whether the function that reads the members asks for one key alone."""
    while reader is not None:
        name = reader.f_code.co_name
        if name not in _PASSES_ON and not name.startswith("<"):
            return name in _BY_KEY
        reader = reader.f_back
    return True
