"""Reads the results that ``functools.lru_cache`` and ``functools.cache`` keep of a program's function.

A result may be of a state that is no more, and then it is no function of what a digest has. The results
count, unless the cache was empty when code was digested before, and what the function reads is what it was
then: a call since then answers what a call answers now. So does one of a function that has nothing but plain
arguments and libraries.
"""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

from ..released import known
from . import asked, variables
from .by_arguments import TORCH_FUNCTIONS
from .library import is_library
from .reading import imported_by, names_in, read_by
from .values import Undescribed, is_value

_empty: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Caches that were empty -> the digests of their functions at that time."""
_is_inside: list[bool] = []


def kept_results(cache: Any, digest_of: Callable[[Any], str]) -> list[Any]:
    """Return the arguments and results that a cache keeps and that its function may not answer now.

    ``digest_of``: what returns the digest of a function. Raises `Undescribed` with the reason where the
    results cannot be read.
    """
    if _is_inside:
        return []  # what reads the cache has them
    _is_inside.append(True)
    try:
        count = functools._lru_cache_wrapper.cache_info(cache).currsize
        if not count:
            _empty[cache] = digest_of(cache.__wrapped__)
            return []
        if cache in _empty and _empty[cache] == digest_of(cache.__wrapped__):
            return []
    finally:
        _is_inside.pop()
    found = _pairs(cache)
    if len(found) != count:
        raise Undescribed("results of a cache that cannot be read")
    if _has_no_state(cache.__wrapped__) and all(is_value(one) for pair in found for one in _parts(pair)[:-1]):
        return []
    return [tuple("marked" if type(one) is object else one for one in _parts(pair)) for pair in found]


_OF_THE_GPU = frozenset(
    ("get_device_capability", "get_device_name", "get_device_properties", "is_bf16_supported", "has_triton")
)
_SWITCHES = frozenset(one.rpartition(".")[2] for one in TORCH_FUNCTIONS) - _OF_THE_GPU
"""Names of functions of torch that answer what can be switched while a process runs."""


def _has_no_state(function: Any) -> bool:
    """Return whether a function reads nothing but modules and classes of libraries, and no settings."""
    if not isinstance(function, types.FunctionType):
        return isinstance(function, types.BuiltinFunctionType)
    code = function.__code__
    read = [one for _, one in (*read_by(function, names_in(code)), *imported_by(function))]
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not _SWITCHES.isdisjoint(names_in(code)) or not all(map(is_value, given)):
        return False
    return all(map(_is_of_library, read)) and not any(_asks_for_state(one, code) for one in read)


def _is_of_library(value: Any) -> bool:
    if isinstance(value, type):
        return is_library(value)
    is_builtin = isinstance(value, types.BuiltinFunctionType) and value.__module__ == "builtins"
    return is_builtin or (isinstance(value, types.ModuleType) and known.is_library(value))


def _asks_for_state(value: Any, code: types.CodeType) -> bool:
    return variables.reads_environment(value, code) or any(True for _ in asked.of_module(value, code))


def _parts(pair: tuple[Any, Any]) -> tuple[Any, ...]:
    key, result = pair
    return (*(key if type(key) is tuple else (key,)), result)


def _pairs(cache: Any) -> list[tuple[Any, Any]]:
    """Return the keys and results of a cache. One without a limit has them in a dictionary; one with a limit
    refers to the key, the result and the class of each of its links."""
    held = gc.get_referents(cache)
    found = []
    for key, result, kind in zip(
        held[1::3], held[2::3], held[3::3], strict=False
    ):  # after the class of the cache
        if getattr(kind, "__name__", "") != "_lru_list_elem":
            break
        found.append((key, result))
    own = vars(cache)
    tables = [list(one.items()) for one in held if type(one) is dict and one is not own]
    return found or (tables[0] if tables else [])
