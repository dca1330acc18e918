"""Finds what a program put into the tables of AOTAutograd, of Inductor and of the dispatcher.

The tables say what an operator of PyTorch's is traced into and compiled to: decompositions, lowerings,
patterns, passes, code generators of a device, and Python functions that a program registered for operators of
PyTorch's.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import operator
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from ..code.library import is_library
from ..keys import CORE
from . import effects, in_place, known, patterns, presence, source, wrappers
from .registered import core, registrations
from .signatures import are_known

_SETTINGS = ("torch._inductor.config", "torch._functorch.config")
"""Modules of settings, of which some are functions."""
_FOR_ANY = frozenset(("_special_op_to_decompose_cia",))
"""Functions that stand in a table for operators of any name."""


def changed() -> Iterator[tuple[str, Any]]:
    """Yield place and value for each entry of a table that is not torch's own."""
    _clean.clear()
    for tables, is_own in _TABLES:
        for place, table in _named(tables):
            yield from _entries(place, table, is_own)
    for module in _SETTINGS:
        yield from _functions_in_settings(module)
    yield from patterns.changed(_has_known_functions)
    yield from effects.changed()
    yield from _of_operators()
    core.judge()
    for place, function in sorted(core.functions.items()):
        if place in registrations():
            yield f"the implementation {place}", function
    _clean.clear()


def _named(tables: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    for module, names in tables.items():
        for name in names:
            value = getattr(sys.modules.get(module), name, None)
            value = dict(enumerate(value)) if isinstance(value, list) else value
            yield f"{module}.{name}", value if isinstance(value, dict) else {}


_judged: dict[str, tuple[list[Any], list[Any], list[tuple[str, Any]]]] = {}
"""Table -> its keys and values when they were judged, and what was not torch's own."""


def _entries(place: str, table: Mapping[Any, Any], is_own: Any) -> list[tuple[str, Any]]:
    """Return the entries of a table that are not torch's own. Nothing is judged twice."""
    keys, values = list(table), list(table.values())
    before = _judged.get(place)
    is_same = before is not None and len(before[1]) == len(values) and all(map(_is, before[0], keys))
    if before is not None and is_same and all(map(_is, before[1], values)):
        return before[2]
    known = {id(key): value for key, value in zip(*before[:2], strict=True)} if before else {}
    bad = {name for name, _ in before[2]} if before else set()
    found, new = [], []
    for key, value in zip(keys, values, strict=True):
        name = f"{place}[{key}]"
        if known.get(id(key), known) is value and name not in bad:
            continue
        new.append(value)
        if not (are_known({name: value}) or is_own(key, value)):
            found.append((name, value))
    in_place.keep(new)
    in_place.compare(new)
    others = {name for name, _ in found}
    found += [(f"{place}[{key}]", presence.REMOVED) for key in presence.missing(place, table)]
    presence.note(place, (key for key in keys if f"{place}[{key}]" not in others))
    _judged[place] = (keys, values, found)
    return found


def _is(one: Any, other: Any) -> bool:
    return one is other


def _is_own(_: Any, value: Any) -> bool:
    """Return whether a value has no code of a program."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_own(None, one) for one in value)
    if isinstance(value, type):
        return is_library(value)
    if not is_library(type(value)):
        return False
    parts = vars(value).values() if type(value).__module__.startswith("torch._inductor.codegen") else ()
    return _has_known_functions(value) and all(_is_own(None, one) for one in parts if isinstance(one, type))


def _has_known_functions(value: Any) -> bool:
    return wrappers.is_clean(value, _clean, _TRACED)


_clean: dict[int, Any] = {}
"""Objects without code of a program, while one call of `changed` lasts."""
_TRACED = "<eval_with_key>"
"""What the file of a graph's code begins with: that of a pattern, which the functions beside it made."""


def _is_own_decomposition(operator: Any, value: Any) -> bool:
    """Return whether a function of torch's stands in a table for the operator that it was written for."""
    if not _is_own(None, value):
        return False
    space, _, rest = str(getattr(operator, "_name", operator)).partition("::")
    if space not in CORE:
        return True
    name = rest.partition(".")[0]
    root = name.strip("_").removesuffix("_copy").removesuffix("_backward")
    for one in wrappers.functions_in(value):
        own = one.__code__.co_name
        if root in own or own.strip("_") in name or own in _FOR_ANY or name in _decorators(one):
            return True
    functions = list(wrappers.functions_in(value))
    files = {one.__code__.co_filename for one in functions}
    return not functions or (wrappers.is_made(functions) and any(_has_word(one, name) for one in files))


def _is_own_lowering(operator: Any, value: Any) -> bool:
    """Return whether a function of torch's stands in Inductor's table for the operator that it was written
    for: the function, its decorators, or what it holds, name the operator.

    Operators on lists of tensors are omitted: the functions of some are named after other operators.
    """
    if not _is_own(None, value):
        return False
    said = str(getattr(operator, "_qualified_op_name", None) or getattr(operator, "_name", ""))
    space, _, rest = said.partition("::")
    name = rest.partition(".")[0].strip("_")
    if space not in CORE or name.startswith("foreach_"):
        return True
    wanted = {name, name.removesuffix("_copy"), name.removesuffix("_tensor")}
    # The first functions mostly say it: to find all of them takes long.
    texts = (text for one in wrappers.functions_in(value) for text in _words_of(one))
    return any(text.strip("_") in wanted for text in texts)


def _words_of(function: types.FunctionType) -> Iterator[str]:
    """Yield the words by which a function says which operator it is for."""
    yield from (function.__name__, function.__code__.co_name)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            held = cell.cell_contents
            for one in held if isinstance(held, (list, tuple, set)) else (held,):
                name = getattr(one, "_qualified_op_name", None) or getattr(one, "_name", None) or one
                yield from _WORD.findall(name) if isinstance(name, str) else ()
    yield from _WORD.findall(_decorators(function))


_WORD = re.compile(r"\w+")


def _has_word(file: str, name: str) -> bool:
    return any(True for _ in source.words(source.source(file).text, name))


def _decorators(function: types.FunctionType) -> str:
    """Return the lines of a module between the definition before a function and the function."""
    return source.source(function.__code__.co_filename).decorators.get(function.__code__.co_name, "")


_TABLES = (
    (presence.DECOMPOSITIONS, _is_own_decomposition),
    (presence.LOWERINGS, _is_own_lowering),
    (presence.OTHERS, _is_own),
)


def _functions_in_settings(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings whose values are functions, or objects of a program's classes."""
    for name, entry in list(getattr(sys.modules.get(module), "_config", {}).items()):
        value = getattr(entry, "user_override", None)
        if type(value) is contextvars.ContextVar:  # from 2.13 on
            value = value.get()
        if (
            value is None
            or isinstance(value, (bool, int, float, str, types.ModuleType))
            or type(value) is object
        ):
            continue
        if not (isinstance(value, (dict, set)) or _is_own(None, value)):
            yield f"{module}.{name}", value


def _of_operators() -> Iterator[tuple[str, Any]]:
    """Yield the functions of a program in the tables that the objects of PyTorch's operators have."""
    yield from _operators.changed(sys.modules["torch"].ops)
    registry = getattr(sys.modules.get("torch._library.simple_registry"), "singleton", None)
    for name, entry in sorted(getattr(registry, "_data", {}).items()):
        if name.partition("::")[0] in CORE:
            for value in functions_of_entry(entry):
                if not _is_own_function(value):
                    yield f"the rules of {name}", value


class _Operators:
    """Keeps the tables of the operators of PyTorch's own that this process has looked up, and of those of
    higher order, so that a look at tables that did not change takes no step for each operator."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._holders: list[dict[str, Any]] = []
        """The attributes of the operators: a program may put another dict in the place of ``py_kernels``."""
        self._others: list[Mapping[Any, Any]] = []
        """The other tables."""
        self._functions: list[Any] = []
        self._changed: list[tuple[str, Any]] = []
        self._present: dict[str, dict[int, tuple[Any, ...]]] = {name: {} for name in _KERNELS}
        """Table -> of an operator's attributes, by address, the keys for which torch itself put a function
        there."""

    def functions(self, ops: Any) -> list[Any]:
        """Return all functions in the tables."""
        packets = _packets(ops)
        sizes = list(map(len, map(vars, packets)))
        if sizes != self._sizes:
            # The attributes alone: thousands of new tuples would make Python collect garbage, which takes
            # longer.
            self._sizes = sizes
            self._holders = [held for _, held in _holders(packets) if _KERNELS[0] in held]
            self._others = [held[name] for held in self._holders for name in _KERNELS[1:] if name in held]
        tables = itertools.chain(map(_PY_KERNELS, self._holders), self._others)
        return [value for table in tables if table for value in list(table.values())]

    def changed(self, ops: Any) -> list[tuple[str, Any]]:
        """Return place and function for each function of a program, and for each of torch's that is not
        there."""
        functions = self.functions(ops)
        if len(functions) != len(self._functions) or not all(map(_is, functions, self._functions)):
            self._functions, self._changed = functions, list(self._judge(ops))
        return self._changed

    def _judge(self, ops: Any) -> Iterator[tuple[str, Any]]:
        if in_place.is_late() and not self._present[_KERNELS[0]]:
            from . import registrations  # an early attach does not need it

            for one, key in registrations.kernels():
                kept = self._present[_KERNELS[0]]
                kept[id(vars(one))] = (*kept.get(id(vars(one)), ()), key)
        all_own = all(id(value) in _own_kernels for value in self._functions)
        for name, kept in self._present.items():
            if name != _KERNELS[0] and not (kept or any(self._others)):
                continue  # on a torch as released
            for held in self._holders:
                table = held.get(name) or {}
                keys = tuple(table)
                if not all_own or kept.setdefault(id(held), keys) != keys:
                    yield from self._judge_table(ops, held, name, table)

    def _judge_table(
        self, ops: Any, held: dict[str, Any], name: str, table: Mapping[Any, Any]
    ) -> Iterator[tuple[str, Any]]:
        present = self._present[name].get(id(held), ())
        own = [key for key, value in list(table.items()) if _is_own_function(value)]
        found = {key: value for key, value in list(table.items()) if key not in own}
        found |= {key: presence.REMOVED for key in present if key not in table}
        self._present[name][id(held)] = tuple(dict.fromkeys((*present, *own)))
        for key, value in found.items():
            one = next(one for one, attributes in _holders(_packets(ops)) if attributes is held)
            yield f"{one}.{name}[{getattr(key, '__qualname__', key)}]", value


_KERNELS = ("py_kernels", "python_key_table", "functorch_table")
"""The attributes of an operator that are tables of functions."""
_PY_KERNELS: Any = operator.itemgetter(_KERNELS[0])


def _packets(ops: Any) -> list[Any]:
    """Return the operators of PyTorch's own that were looked up, and those of higher order."""
    spaces = (vars(getattr(ops, space)) for space in (*sorted(CORE), "higher_order"))
    return [one for space in spaces for one in list(space.values()) if hasattr(one, "__dict__")]


def _holders(packets: list[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield operators and their overloads, each with its attributes."""
    for packet in packets:
        for one in (packet, *vars(packet).values()):
            if held := getattr(one, "__dict__", None):
                yield one, held


_operators = _Operators()


def _is_own_function(value: Any) -> bool:
    if id(value) in _own_kernels:
        return True
    if not (are_known({"": value}) or _is_own(None, value)):
        return False
    _own_kernels[id(value)] = value
    return True


_own_kernels: dict[int, Any] = {}
"""Functions of operators that were judged to be torch's own."""


def functions_of_entry(entry: Any) -> list[Any]:
    """Return the functions that a program registered for an operator: what computes its shapes, and what runs
    in the place of the operator for a subclass or a mode."""
    kernel = getattr(getattr(entry, "fake_impl", None), "kernel", None)
    rules = getattr(getattr(entry, "torch_dispatch_rules", None), "_data", {})
    found = [] if kernel is None else [kernel.func]
    for kind, rule in sorted(rules.items(), key=lambda item: str(item[0])):
        found += [kind, getattr(rule, "func", rule)]
    return found


def own_entries() -> Iterator[dict[str, Any]]:
    """Yield name and value of each entry that is torch's own."""
    for place, (keys, values, found) in _judged.items():
        others = {name for name, _ in found}
        for key, value in zip(keys, values, strict=True):
            if (name := f"{place}[{key}]") not in others:
                yield {name: value}
    yield from ({"": value} for value in list(_own_kernels.values()))


def take() -> None:
    """Take what stands in the tables now for torch's own: none but torch's own code put it there."""
    core.noted.clear()
    for tables, _ in _TABLES:
        for place, table in _named(tables):
            keys, values = list(table), list(table.values())
            if known.are_files_known(values):
                _judged[place] = (keys, values, [])
                in_place.keep(values)
    kernels = _operators.functions(sys.modules["torch"].ops)
    if known.are_files_known(kernels):
        _own_kernels.update((id(value), value) for value in kernels)


def forget() -> None:
    """Let go of what was judged."""
    global _operators
    _operators = _Operators()
    for kept in (_judged, _own_kernels, core.noted, core.functions):
        kept.clear()
    patterns.forget()
    presence.forget()
