"""Digests the code of functions with everything that they call; equal code has one digest in every process.

A digest covers the code and its constants, also the constants of a module that the code reads. It covers no
places or names of files, comments, line numbers or annotations. PyTorch, Triton and the standard library are
not followed, since their versions are in every key. Of an object that the code reads, such as one with the
settings of an application, a digest covers the attributes that the code names; of a list or dict all plain
values. They are as they are when the digest is made: an application that changes them has another digest.
Tensors are left out. This module calls, imports and parses nothing, and never raises. A function takes a few
microseconds.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

MAX_FOLLOWED = 500
"""Functions and classes that are followed, at most: a body may call into a large library."""
_LIBRARIES = frozenset({"torch", "torchgen", "triton", *sys.stdlib_module_names})
"""Packages that are not followed."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
"""Types of the constants that a digest covers."""
_PLAIN_OF_TORCH = frozenset({"dtype", "device", "layout", "memory_format"})
"""Names of torch's types whose values a digest covers."""
_DEEPEST = 4
"""How many attributes or containers deep a digest covers the values of an object."""
_LARGEST = 1000
"""Items of the largest container that a digest covers."""
_MOST_VALUES = 10_000
"""Values of one object that a digest covers, at most."""


class FollowedCode:
    """Follows everything that some functions and classes call or read.

    Attributes:
        lines: The code and the constants, as text.
        anything: Whether the application has any of the code.
        kernels: The Triton kernels among the code, with the digests of their own sources and constants.
    """

    def __init__(self, roots: Iterable[Any], named: Mapping[str, Sequence[Any]] | None = None) -> None:
        """``roots``: the functions and classes to begin with. ``named``: the functions behind names that are
        no values in Python, such as the names of operators."""
        self._named = named or {}
        self.lines: list[str] = []
        self.kernels: dict[str, str] = {}
        self.anything = False
        self._followed: dict[int, Any] = {}  # referenced, so that no address is used again
        self._waiting = list(roots)
        while self._waiting and len(self._followed) < MAX_FOLLOWED:
            self._follow(self._waiting.pop(0))

    @property
    def digest(self) -> str:
        """Return twelve letters of the digest of all lines."""
        return short("\n".join(self.lines))

    def _follow(self, value: Any) -> None:
        if id(value) in self._followed:
            return
        self._followed[id(value)] = value
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, (types.MethodType, classmethod, staticmethod)):
            self._waiting.append(value.__func__)
            function, instance = value.__func__, getattr(value, "__self__", None)
            if isinstance(function, types.FunctionType) and not _is_of_library(function):
                names = frozenset(_names(function.__code__))
                self.lines += islice(_state(instance, names), _MOST_VALUES)
        elif isinstance(value, functools.partial):
            self._waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, type):
            self._waiting += [part for _, part in sorted(vars(value).items()) if _is_followed(part)]
            self._waiting += [base for base in value.__bases__ if _is_followed(base)]
        elif _is_kernel(value):
            self._kernel(value)
        elif hasattr(value, "__dict__") and not isinstance(value, types.ModuleType):
            # A record of functions, such as torch.library's of a backward.
            self._waiting += [part for _, part in sorted(vars(value).items()) if _is_followed(part)]

    def _kernel(self, value: Any) -> None:
        """Add a Triton kernel, plain or under ``triton.autotune`` or ``triton.heuristics``."""
        self.anything, function = True, value.fn
        self._waiting.append(function)
        if isinstance(source := getattr(value, "src", None), str):
            constants = "\n".join(_constants(function)) if isinstance(function, types.FunctionType) else ""
            self.kernels[str(getattr(function, "__name__", "kernel"))] = short(f"{source}\n{constants}")
            self.lines.append(source)
            return
        configurations = sorted(str(one) for one in getattr(value, "configs", None) or ())
        self.lines += [line for line in configurations if " at 0x" not in line]

    def _function(self, function: types.FunctionType) -> None:
        if not _is_of_library(function):
            self.anything = True
            self.lines += _code(function.__code__)
            self.lines += _plain(function.__defaults__)
            self.lines += _plain(tuple((function.__kwdefaults__ or {}).items()))
            for name in _names(function.__code__):
                self._waiting += self._named.get(name, ())
            names = frozenset(_names(function.__code__))
            for name, value in _read(function):
                self.lines += (f"{name}: {text}" for text in islice(_state(value, names), _MOST_VALUES))
        self.lines += _constants(function)
        self._waiting += [value for _, value in _read(function) if _is_followed(value)]
        self._waiting += _cells(function).values()


def _code(code: types.CodeType) -> Iterator[str]:
    yield f"{code.co_argcount} {code.co_kwonlyargcount} {code.co_flags} {code.co_names} {code.co_code.hex()}"
    for constant in code.co_consts:
        yield from _code(constant) if isinstance(constant, types.CodeType) else _plain(constant)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of the functions around a function, as far as they are set."""
    variables = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            variables[name] = cell.cell_contents
    return variables


def _read(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function reads outside of itself, by name; of the application's modules their attributes.

    For a function of a library, yield only the variables of the functions around it.
    """
    cells, names = _cells(function), tuple(dict.fromkeys(_names(function.__code__)))
    if _is_of_library(function):
        yield from cells.items()
        return
    for name in (*cells, *names):
        value = cells[name] if name in cells else function.__globals__.get(name)
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif not _is_library_module(value.__name__):
            yield from ((other, vars(value)[other]) for other in names if other in vars(value))


def _constants(function: types.FunctionType) -> list[str]:
    """Return ``name=value`` for each number and text that a function reads, a ``constexpr`` included."""
    values = ((name, _constant_value(value)) for name, value in _read(function))
    return [f"{name}={text}" for name, value in values if value is not None for text in _plain(value)]


def _constant_value(value: Any) -> Any:
    return getattr(value, "value", None) if type(value).__module__.startswith("triton.") else value


def _plain(value: Any) -> list[str]:
    if isinstance(value, frozenset):
        return sorted(text for item in value for text in _plain(item))
    if isinstance(value, tuple):
        return [text for item in value for text in _plain(item)]
    return [repr(value)] if type(value) in _PLAIN or _is_plain_of_torch(value) else []


def _state(value: Any, names: frozenset[str], depth: int = 0) -> Iterator[str]:
    """Yield the plain values in a container, or in the attributes of an object that the code names."""
    if type(value) in _PLAIN or _is_plain_of_torch(value):
        if depth:  # `_constants` has those that the code reads by name
            yield repr(value)
        return
    if depth == _DEEPEST or isinstance(value, (types.ModuleType, types.FunctionType)):
        return
    for label, item in _parts(value, names):
        for text in _state(item, names, depth + 1):
            yield f"{label}={text}"


def _parts(value: Any, names: frozenset[str]) -> list[tuple[str, Any]]:
    """Return the items of a container, or the attributes of another object that the code names."""
    # The methods of the base classes: a subclass of an application could run its own code.
    base = next((kind for kind in (dict, list, tuple, set, frozenset) if isinstance(value, kind)), None)
    if base is None:
        return [(name, _attribute(value, name)) for name in sorted(names)]
    if base.__len__(value) > _LARGEST:
        return []
    if base is dict:
        items = ((repr(key), item) for key, item in dict.items(value) if type(key) in _PLAIN)
        return sorted(items, key=lambda item: item[0])
    if base in (list, tuple):
        return [("", item) for item in base.__iter__(value)]
    return [
        (text, True) for text in sorted(repr(item) for item in base.__iter__(value) if type(item) in _PLAIN)
    ]


def _is_plain_of_torch(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "torch" and kind.__name__ in _PLAIN_OF_TORCH


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute of an object without calling anything; an empty tuple if there is none."""
    classes = value.__mro__ if isinstance(value, type) else (value, *type(value).__mro__)
    for holder in classes:
        try:  # not what a class of an application puts in the place of this
            kept = (type if isinstance(holder, type) else object).__getattribute__(holder, "__dict__")
        except AttributeError:  # an object with slots alone
            continue
        if name in kept:
            slot = kept[name]
            return getattr(value, name, ()) if isinstance(slot, types.MemberDescriptorType) else slot
    return ()


def _is_followed(value: Any) -> bool:
    """Return whether a value is code of the application, or wraps code of the application."""
    if isinstance(value, (types.MethodType, classmethod, staticmethod)):
        value = value.__func__
    if isinstance(value, types.FunctionType) and value.__closure__:
        return True
    return _is_kernel(value) or (callable(value) and not _is_of_library(value))


def _is_kernel(value: Any) -> bool:
    """Return whether a value is a Triton kernel of the application, or the object that tunes one."""
    return (
        type(value).__module__.startswith("triton.") and hasattr(value, "fn") and not _is_of_library(value.fn)
    )


def _is_of_library(value: Any) -> bool:
    return _is_library_module(str(getattr(value, "__module__", None) or "builtins"))


def _is_library_module(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def short(text: str) -> str:
    """Return twelve letters of a text's digest: enough to tell two versions of the text apart."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
