"""Reads functions, classes and objects without calling anything of theirs."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import dis
import functools
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ..released.known import is_library as is_library_module
from ..released.known import is_own_module
from .library import is_library
from .values import is_at_home, is_value, short, type_name

NOT_OF_CODE = frozenset(
    (
        "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__",
        "__annotations__", "__static_attributes__", "__abstractmethods__", "__annotations_cache__",
        "__annotate__", "__annotate_func__",
        "__match_args__", "__parameters__", "__orig_bases__", "__slots__", "__type_params__",
    )
)  # fmt: skip
"""Attributes of every class that decide nothing that the others do not."""
OF_CLASS = (
    "__dataclass_fields__", "_fields", "_field_defaults", "_member_map_", "__match_args__", "_boundary_",
    "_member_names_", "_value2member_map_",
)  # fmt: skip
"""Attributes of a class that are no code and decide how its objects are made and matched."""


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code and that of the functions inside of it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from codes_in(one)


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the names in code and in the functions inside of it, each once."""
    return tuple(dict.fromkeys(name for one in codes_in(code) for name in one.co_names))


def code_lines(code: types.CodeType, text: Callable[[Any], str]) -> Iterator[str]:
    """Yield what code does, and the code of the functions inside of it, without its place in the source.

    ``text``: what returns the text of a constant.
    """
    arguments = f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags}"
    names = f"{code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars}"
    yield f"{arguments} {names} {code.co_code.hex()} {getattr(code, 'co_exceptiontable', b'').hex()}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_lines(constant, text)
        else:
            yield text(constant)


def cells_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of the functions around a function, as far as they are set."""
    variables = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            variables[name] = cell.cell_contents
    return variables


def read_by(function: types.FunctionType, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield what a function reads outside of itself, by name."""
    cells, builtin = cells_of(function), getattr(function, "__builtins__", vars(builtins))
    for name in dict.fromkeys((*cells, *names)):
        if name in cells:
            yield name, cells[name]
        elif name in function.__globals__:
            yield name, function.__globals__[name]
        elif name in builtin:
            yield name, builtin[name]


def texts_in(code: types.CodeType) -> Iterator[str]:
    """Yield the texts in code, and in the functions inside of it, that may be names of attributes."""
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from texts_in(one)
        elif isinstance(one, str) and one.isidentifier():
            yield one


def imported_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the modules that a function imports while it runs, as far as they are loaded; of others the
    digest of their file. What it imports from a module is an attribute of it."""
    for name, level in imports_in(function.__code__):
        package = str(function.__globals__.get("__package__") or "")
        full = ".".join(
            [*package.split(".")[: len(package.split(".")) - level + 1], name] if level else [name]
        )
        full = full.rstrip(".")
        if (module := sys.modules.get(full)) is not None:
            yield f"import {full}", module
        elif not is_own_module(full):
            yield f"import {full}", file_digest(full)


_imports: dict[types.CodeType, tuple[tuple[str, int], ...]] = {}


def imports_in(code: types.CodeType) -> tuple[tuple[str, int], ...]:
    """Return names and levels of the imports in code, and in the functions inside of it."""
    if code not in _imports:
        found: list[tuple[str, int]] = []
        before: list[Any] = []
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                found.append((step.argval, before[-2] if len(before) > 1 and type(before[-2]) is int else 0))
            before.append(step.argval)
        inner = (
            one for part in code.co_consts if isinstance(part, types.CodeType) for one in imports_in(part)
        )
        _imports[code] = tuple(dict.fromkeys((*found, *inner)))
    return _imports[code]


def file_digest(module: str) -> str:
    """Return a digest of the file that Python would load as a module; ``nothing`` if there is none. Nothing
    is imported."""
    parent = sys.modules.get(module.rpartition(".")[0])
    places = getattr(parent, "__path__", None) if "." in module else None
    try:
        spec = PathFinder.find_spec(module, places) if places or "." not in module else None
        return short(Path(spec.origin).read_bytes().hex()) if spec is not None and spec.origin else "nothing"
    except (OSError, ValueError, ImportError):
        return "nothing"


def registered_with(cls: type) -> Iterator[str]:
    """Yield the classes that a program registered with an abstract class."""
    import _abc  # type: ignore[import-not-found]

    for reference in _abc._get_dump(cls)[0]:
        if (one := reference()) is not None:
            yield type_name(one)


def is_code(value: Any) -> bool:
    return (
        callable(value)
        or isinstance(value, (classmethod, staticmethod, property))
        or hasattr(type(value), "__get__")
    )


def held_by(value: Any) -> list[Any] | None:
    """Return what a wrapper of code holds; ``None`` for an object that is no such wrapper."""
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (classmethod, staticmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return [value.func, value.args, value.keywords, dict(vars(value))]
    if type(value).__module__ == "functools" and hasattr(value, "__wrapped__") and is_at_home(type(value)):
        return [value.__wrapped__]
    if isinstance(value, functools.cached_property):
        return [value.func]
    if isinstance(value, weakref.ref):
        return [weakref.ref.__call__(value)]
    if type_name(type(value)) == "torch._library.utils.Kernel" and is_at_home(type(value)):
        return [value.func]  # its other attribute is the file and the line that registered it
    if isinstance(value, dataclasses.Field):
        return [getattr(value, name) for name in _OF_FIELDS]
    return None


_OF_FIELDS = ("name", "default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only")
"""What a field of a dataclass decides; its type is an annotation."""


def names_of_text(text: str) -> Iterator[str]:
    """Yield the names of attributes in a constant of code: the text itself, or those that it formats."""
    if text.isidentifier():
        yield text
    elif "{" in text and "." in text:
        yield from _FORMATTED.findall(text)


_FORMATTED = re.compile(r"\.([A-Za-z_]\w*)")


def hooks_of(tensor: Any) -> list[Any]:
    """Return the functions that run when a tensor gets its gradient."""
    if not tensor.requires_grad:
        return []
    held = (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))
    return [one for hooks in held for one in (hooks or {}).values()]


def own_attributes(value: Any) -> Iterator[str]:
    """Yield the names of the attributes that an object has by itself."""
    if isinstance(value, (types.ModuleType, type)):
        return
    if isinstance(value, threading.local):
        yield from threading.local.__getattribute__(value, "__dict__")
    with contextlib.suppress(AttributeError):
        yield from object.__getattribute__(value, "__dict__")
    for holder in type(value).__mro__:
        slots = vars(holder).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def has_attributes(value: Any) -> bool:
    try:
        object.__getattribute__(value, "__dict__")
    except AttributeError:
        return any("__slots__" in vars(holder) for holder in type(value).__mro__)
    return True


def _programs(cls: type) -> Iterator[type]:
    """Yield the classes of a module that a program wrote."""
    return (one for one in cls.__mro__ if one is not types.ModuleType and not is_library(one))


def attribute_of(value: Any, name: str) -> list[Any]:
    """Return an attribute of an object without calling anything; an empty list if there is none."""
    if isinstance(value, types.ModuleType):
        own = next((vars(one)[name] for one in _programs(type(value)) if name in vars(one)), vars(value))
        return [
            *([vars(value)[name]] if name in vars(value) else ()),
            *(() if own is vars(value) else (own,)),
        ]
    if isinstance(value, threading.local):  # another one in each thread
        held = threading.local.__getattribute__(value, "__dict__")
        if name in held:
            return [held[name]]
    classes = value.__mro__ if isinstance(value, type) else (value, *type(value).__mro__)
    for holder in classes:
        if isinstance(holder, type) and is_library(holder) and is_at_home(holder):
            slot = vars(holder).get(name)
            if isinstance(slot, types.MemberDescriptorType) and not isinstance(value, type):
                with contextlib.suppress(AttributeError):  # nothing was ever put there
                    return [slot.__get__(value, type(value))]
                return []
            break
        try:  # not what a class of an application puts in the place of this
            kept = (type if isinstance(holder, type) else object).__getattribute__(holder, "__dict__")
        except AttributeError:  # an object with slots alone
            continue
        if name in kept:
            slot = kept[name]
            return [getattr(value, name, None)] if isinstance(slot, types.MemberDescriptorType) else [slot]
    kept = {} if isinstance(value, type) else getattr(value, "__dict__", {})
    inner = [kept.get(one) for one in ("_parameters", "_buffers", "_modules")]
    return [one[name] for one in inner if isinstance(one, dict) and name in one]


def modules_read(values: Iterable[Any], names: Collection[str], depth: int = 0) -> Iterator[types.ModuleType]:
    """Yield the modules of a program that code with these names reaches from values that it reads: these, or
    modules in their containers, objects and modules, a few steps away."""
    for value in list(values) if depth < _STEPS else ():
        if isinstance(value, types.ModuleType):
            if is_library_module(value):
                continue
            yield value
        if is_value(value):  # as most items of a long list
            continue
        if isinstance(value, (dict, list, tuple)):
            held = dict.values(value) if isinstance(value, dict) else value
        else:
            held = [one for name in names for one in attribute_of(value, name)]
        yield from modules_read(held, names, depth + 1)


_STEPS = 3
"""How far `modules_read` goes."""
