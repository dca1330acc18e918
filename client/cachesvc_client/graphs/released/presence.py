"""Finds entries that a program removed from torch's tables.

The keys of a table are noted when the import of its module ends, and again whenever the table is judged,
since torch adds entries later. An entry is removed if its key was noted and is not there any more. Of a table
that was there before `watch` the keys are noted that torch's sources register.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ...hooks import imports

DECOMPOSITIONS: Mapping[str, tuple[str, ...]] = {
    "torch._decomp": ("decomposition_table", "pre_autograd_decomposition_table", "meta_table"),
    "torch._inductor.decomposition": ("decompositions", "extra_random_decomps"),
}
"""Tables from an operator to the function that it is traced into, by module."""
LOWERINGS: Mapping[str, tuple[str, ...]] = {"torch._inductor.lowering": ("lowerings",)}
"""Those from an operator to the function that writes its code."""
OTHERS: Mapping[str, tuple[str, ...]] = {
    "torch._inductor.lowering": ("user_lowerings", "_maybe_layout_constraints", "layout_constraints"),
    "torch._inductor.codegen.common": (
        "device_codegens",
        "device_op_overrides_dict",
        "custom_backend_passes",
        "custom_backend_codegen_configs",
    ),
    "torch._inductor.choices": ("_REGISTERED",),
    "torch._subclasses.fake_impls": ("op_implementations_dict", "op_implementations_checks"),
}
"""Other tables, from an operator or a device to functions and classes."""


REMOVED = object()
"""Stands for the value of a removed entry."""

_present: dict[str, set[Any]] = {}
"""Table -> the keys that torch itself put there."""
_late: set[str] = set()
"""Tables that were there before `watch`, and were not judged yet."""


def watch() -> None:
    """Note each table when its module was imported. Safe to call again."""
    for tables in (DECOMPOSITIONS, LOWERINGS, OTHERS):
        for module, names in tables.items():
            if module in sys.modules:
                _late.update(f"{module}.{name}" for name in names)
            imports.when_imported(module, functools.partial(_note_tables, names))


def _note_tables(names: Sequence[str], module: types.ModuleType) -> None:
    for name in names:
        if isinstance(table := vars(module).get(name), dict):
            note(f"{module.__name__}.{name}", table)


def note(table: str, keys: Iterable[Any]) -> None:
    """Note keys of a table that torch itself put there."""
    _present.setdefault(table, set()).update(keys)


def missing(table: str, keys: Collection[Any]) -> list[Any]:
    """Return the keys that were noted for a table and are not in it now."""
    if table in _late:
        from . import registrations  # an early attach does not need it

        _late.remove(table)
        note(table, registrations.of_table(table))
    return list(_present.get(table, set()) - set(keys))


def forget() -> None:
    """Let go of what was noted."""
    _present.clear()
    _late.clear()
