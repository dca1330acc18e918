"""Digests functions and classes by what they are; equal code has one digest in every process.

A digest covers code without its place in the source, default values, closures, and of a class each attribute
by its value in the order of definition. Of a class that `graphs.released` compares with torch as it was
released it covers the name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from ....graphs.code.constants import PLAIN, code_digest, constant_text, qualified_name
from ....graphs.released import comparison

_PYTHONS_OWN = frozenset({
    *("__doc__", "__module__", "__dict__", "__weakref__", "__annotations__", "__annotate__", "_abc_impl"),
    *("__annotate_func__", "__annotations_cache__", "__abstractmethods__", "__firstlineno__"),
    *("__static_attributes__", "__slotnames__", "__type_params__", "__parameters__", "__orig_bases__"),
})  # fmt: skip
"""Attributes of classes that Python makes, some of them later, and that no trace reads."""
_OF_DYNAMO = ("_torchdynamo", "_dynamo", "__dynamo", "__torch", "_cachesvc")
"""How the names of attributes begin that PyTorch and this client give functions while they run."""
_DEEPEST = 4
"""How many functions deep a digest follows what wraps a function, and closures."""
_classes: dict[type, tuple[tuple[Any, ...], str]] = {}
"""The texts of classes, each with what it was made of."""


def function_digest(function: types.FunctionType, depth: int = 0) -> str:
    """Return the digest of a function's code, of its default values and of its closure."""
    defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    parts = [code_digest(function.__code__), *(constant_text(value) for value in defaults)]
    parts += [f"{name}=" for name in function.__dict__ if not name.startswith(_OF_DYNAMO)]
    if function.__closure__ and depth < _DEEPEST:
        parts += [_cell_text(cell, depth + 1) for cell in function.__closure__]
    return digest(" ".join(parts))


def class_digest(kind: type) -> str:
    """Return the digest of a class, of its bases and of its metaclass: names and values of their attributes,
    in order."""
    metaclass: type = type(kind)
    of_program = (one for one in metaclass.__mro__ if one.__module__ not in sys.stdlib_module_names)
    classes = (*(one for one in kind.__mro__ if one.__module__ != "builtins"), *of_program)
    return digest("\n".join(map(_class_text, classes)))


def is_of_torch(kind: type) -> bool:
    """Return whether torch has a class under its name."""
    name = str(kind.__module__)
    return name.partition(".")[0] == "torch" and getattr(sys.modules.get(name), kind.__name__, None) is kind


def digest(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cell_text(cell: types.CellType, depth: int) -> str:
    try:
        return _attribute_text(cell.cell_contents, depth)
    except ValueError:
        return "empty"


def _class_text(kind: type) -> str:
    """Return one class without its bases. It is made anew where an attribute was replaced."""
    if is_of_torch(kind) and comparison.is_walked(str(kind.__module__)):
        return qualified_name(kind)
    made_of = tuple(_identities(kind))
    known = _classes.get(kind)
    if known is None or known[0] != made_of:
        known = _classes[kind] = (made_of, "\n".join(_lines(kind)))
    return known[1]


def _identities(kind: type) -> Iterator[Any]:
    """Yield what the text of a class is made of. The objects are referenced, so no address is used again."""
    for name, value in vars(kind).items():
        if name not in _PYTHONS_OWN:
            yield name
            yield _Same(value)
            yield from _inner_identities(value)


def _inner_identities(value: Any) -> Iterator[Any]:
    """Yield what a program may replace within an attribute of a class."""
    inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    if isinstance(inner, types.FunctionType):
        yield from map(_Same, (inner.__code__, inner.__defaults__, inner.__kwdefaults__))
        for cell in inner.__closure__ or ():
            with contextlib.suppress(ValueError):
                yield _Same(cell.cell_contents)
    elif type(value) is dict:  # the fields of a dataclass
        for one in value.values():
            yield _Same(one)
            yield constant_text(dict(getattr(one, "metadata", ())))


class _Same:
    """Is equal to another one of the same object."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _lines(kind: type) -> Iterator[str]:
    yield qualified_name(kind)
    if type(kind) is not type:
        yield f"of {qualified_name(type(kind))}"
    for name, value in vars(kind).items():
        if name in _PYTHONS_OWN:
            continue
        yield f"{name} {_fields_text(value) if name == '__dataclass_fields__' else _attribute_text(value, 0)}"


def _attribute_text(value: Any, depth: int) -> str:
    """Return an attribute of a class, or what a closure holds.

    Of an object of any other kind it is the class alone: where a trace read such an object, a guard compares
    what it read.
    """
    if depth > _DEEPEST:
        return qualified_name(type(value))
    if isinstance(value, types.FunctionType):
        return f"function {function_digest(value, depth)}"
    if isinstance(value, (classmethod, staticmethod)):
        return f"{type(value).__name__} {_attribute_text(value.__func__, depth + 1)}"
    if isinstance(value, property):
        parts = (_attribute_text(one, depth + 1) for one in (value.fget, value.fset, value.fdel))
        return f"property {' '.join(parts)}"
    if isinstance(value, (functools.partial, functools.partialmethod)):
        given = (constant_text(one) for one in (value.args, value.keywords))
        return f"partial {_attribute_text(value.func, depth + 1)} {' '.join(given)}"
    if isinstance(value, functools.cached_property):
        return f"cached {_attribute_text(value.func, depth + 1)}"
    if isinstance(value, types.MethodType):
        return f"method {_attribute_text(value.__func__, depth + 1)}"
    if isinstance(value, (type, *PLAIN, tuple, frozenset, enum.Enum, type(None))):
        return constant_text(value)
    if isinstance(wrapped := _wrapped(value), types.FunctionType):
        return f"{qualified_name(type(value))} {_attribute_text(wrapped, depth + 1)}"
    qualified = getattr(value, "__qualname__", "")
    return f"{qualified_name(type(value))} {qualified if isinstance(qualified, str) else ''}"


def _wrapped(value: Any) -> Any:
    """Return the function that a decorator's object says that it wraps; ``None`` if it says nothing."""
    try:
        return vars(value).get("__wrapped__")
    except TypeError:
        return getattr(value, "__wrapped__", None) if type(value).__module__ == "functools" else None


def _fields_text(fields: Mapping[str, Any]) -> str:
    """Return the fields of a dataclass, in order, with their defaults and metadata."""
    return ", ".join(
        f"{name} {_attribute_text(one.default, 1)} {_attribute_text(one.default_factory, 1)} "
        f"{constant_text(dict(one.metadata))} {one.init} {one.repr} {one.hash} {one.compare} "
        f"{one.kw_only is True}"
        for name, one in fields.items()
        if isinstance(one, dataclasses.Field)
    )
