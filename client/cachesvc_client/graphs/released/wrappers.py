"""Finds the Python functions in a value: itself, and those that its wrappers and closures hold."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from .known import GENERATED, NOTHING, is_known, is_ours, name_of, torch_folder
from .source import source

_STAND_INS = frozenset(("_raise_error", "_overload_dummy", "_dummy_fn", "_no_init_or_replace_init"))
"""Functions that torch and ``typing`` put in the place of one that is not there on this machine."""
_DEEPEST = 8
"""How many wrappers of a function are opened."""
_MOST_ITEMS = 50
"""Items of the largest container in which functions are searched for."""
_WRAPPED = ("__wrapped__", "func", "fn", "__func__", "fget", "_func", "cached_property")
"""Attributes under which wrappers of torch and of the standard library keep what they wrap."""
OPENED = (
    types.FunctionType,
    types.MethodType,
    staticmethod,
    classmethod,
    property,
    functools.partial,
    functools.partialmethod,
    functools.cached_property,
    type(functools.lru_cache(lambda: None)),
)
"""Types whose objects are code, or wrap code."""


def are_functions_known(functions: Sequence[Any]) -> bool:
    """Return whether all functions are known, those that a module of torch compiles from a text among
    them."""
    return all(is_known(one.__code__) or is_compiled(one) for one in functions)


def is_compiled(function: types.FunctionType) -> bool:
    if function.__code__.co_filename != GENERATED:
        return False
    home = sys.modules.get(str(function.__globals__.get("__name__")), NOTHING)
    if home.__name__.startswith("torch.") and vars(home) is function.__globals__:
        return True
    handler = getattr(sys.modules.get("torch._inductor.ops_handler"), "DefaultHandler", None)
    if handler is not None and vars(handler).get(function.__code__.co_name) is function:
        return True
    cached = function.__globals__.get("fn")  # how Inductor keeps a method's result on its object
    file = cached.__code__.co_filename if isinstance(cached, types.FunctionType) else ""
    return file.startswith(os.path.join(torch_folder(), "_inductor", "")) and "_on_self" in source(file).text


def wrapped(value: Any) -> Iterator[Any]:
    """Yield what a function or a wrapper of one holds: the variables around it, and what it keeps of it."""
    if isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                continue
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(value, (type, types.ModuleType)):
        yield from list(attributes.values())
    elif _is_wrapper_of_torch(value):
        yield from (getattr(value, name, None) for name in getattr(type(value), "__slots__", ()))
    for name in _WRAPPED:
        if isinstance(value, OPENED) and (inner := getattr(value, name, None)) is not None:
            yield inner
    if isinstance(value, property):
        yield from (part for part in (value.fset, value.fdel) if part is not None)


def functions_in(value: Any, depth: int = _DEEPEST, seen: dict[int, Any] | None = None) -> Iterator[Any]:
    """Yield the Python functions in a value: itself, and those that its wrappers and closures hold."""
    seen = {} if seen is None else seen
    if depth == 0 or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, types.FunctionType) and is_ours(value.__code__):
        yield from functions_in(getattr(value, "__wrapped__", None), depth, seen)
        return
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, (list, tuple, dict)) and len(value) < _MOST_ITEMS:
        for item in value.values() if isinstance(value, dict) else value:
            yield from functions_in(item, depth - 1, seen)
        return
    elif not isinstance(value, OPENED) and not _is_wrapper_of_torch(value):
        return
    for inner in wrapped(value):
        yield from functions_in(inner, depth - 1, seen)


def _is_wrapper_of_torch(value: Any) -> bool:
    module = type(value).__module__ or ""
    return module.partition(".")[0] in ("torch", "contextlib", "typing", "sympy") and not isinstance(
        value, type
    )


def is_clean(value: Any, clean: dict[int, Any], traced: str = "") -> bool:
    """Return whether all functions in a value are known. ``clean``: what was found so before, which grows.

    ``traced``: what the file of code begins with that other code was traced into, which is no code of its
    own.
    """
    found: dict[int, Any] = {}
    waiting = [(value, _DEEPEST)]
    while waiting:
        one, depth = waiting.pop()
        if depth == 0 or id(one) in clean or id(one) in found:
            continue
        found[id(one)] = one
        if isinstance(one, types.FunctionType):
            code = one.__code__
            if is_ours(code):
                waiting.append((getattr(one, "__wrapped__", None), depth))
                continue
            if not (is_known(code) or is_compiled(one) or (traced and code.co_filename.startswith(traced))):
                return False
        elif isinstance(one, (list, tuple, dict)):
            items = one.values() if isinstance(one, dict) else one
            waiting += [(item, depth - 1) for item in items] if len(one) < _MOST_ITEMS else []
            continue
        elif not isinstance(one, OPENED) and not _is_wrapper_of_torch(one):
            continue
        waiting += [(inner, depth - 1) for inner in wrapped(one)]
    clean.update(found)
    return True


def leads_to(functions: list[Any], file: str, name: str) -> bool:
    """Return whether one of the functions is the code ``name`` of ``file``."""
    return any(one.__code__.co_filename == file and name_of(one) == name for one in functions)


OPENED_SET = frozenset(OPENED)


def is_made(functions: Sequence[Any]) -> bool:
    """Return whether another function made the first one: a decorator, or a loop over names."""
    return name_of(functions[0]).endswith("<lambda>") or "<locals>" in name_of(functions[0])


def are_stand_ins(functions: Sequence[Any]) -> bool:
    return bool(functions) and all(one.__code__.co_name in _STAND_INS for one in functions)
