"""Tells what is of torch, of the standard library or of what torch is built on, and in every key."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ..released import known
from .values import type_name

NOTHING = object()
"""What a module has under a name that it lacks."""


def has_code_of_library(value: Any) -> bool:
    """Return whether code that is not followed may read any attribute of an object."""
    is_holder = isinstance(value, (types.ModuleType, type)) or type(value) is types.SimpleNamespace
    return not is_holder and (is_library(type(value)) or any(map(_has_state, type(value).__mro__)))


def _has_state(cls: type) -> bool:
    """Return whether a class of the interpreter's, which is not followed, has attributes of its own."""
    names = type.__getattribute__(cls, "__dict__")
    is_of_interpreter = cls.__module__.partition(".")[0] in _STDLIB
    return (
        is_of_interpreter
        and is_library(cls)
        and bool(names.get("__slots__") or isinstance(names.get("__init__"), types.FunctionType))
    )


_STDLIB = sys.stdlib_module_names - {"abc", "typing", "enum", "builtins"}


def operator_name(value: Any) -> str:
    """Return the name of an operator, or of the object that defines one; an empty text for another value."""
    kind = type_name(type(value))
    if kind == "torch._ops.OpOverload":
        return str(value._name)
    if kind == "torch._ops.OpOverloadPacket":
        return str(value._qualified_op_name)
    if kind == "torch._library.custom_ops.CustomOpDef":
        return str(value._qualname)
    if kind in ("torch._ops._OpNamespace", "torch._ops._Ops"):
        return f"{value.__name__}::"
    if kind.startswith("torch.") and hasattr(type(value), "_cacheable"):
        return f"higher_order::{value._name}"
    return ""


def is_kernel(value: Any) -> bool:
    """Return whether a value is a Triton kernel of the application, or an object that tunes one or sets its
    constants: ``triton.autotune`` and ``triton.heuristics`` wrap each other in any order."""
    if not type(value).__module__.startswith("triton.") or not hasattr(value, "fn"):
        return False
    function = value.fn
    while type(function).__module__.startswith("triton.") and hasattr(function, "fn"):
        function = function.fn
    return not known.is_own_module(str(getattr(function, "__module__", None) or "builtins"))


def without_wrapper(value: Any) -> Any:
    """Return the function of Triton's own that an object of Triton runs outside of kernels, such as
    ``triton.cdiv``; any other value as it is."""
    if type(value).__name__ != "ConstexprFunction" or not is_library(type(value)) or is_kernel(value):
        return value
    return value.fn


def stands_at_home(function: types.FunctionType) -> bool:
    """Return whether a function of a library stands under its name in its module: its text says all of it."""
    home = sys.modules.get(str(function.__globals__.get("__name__")))
    return function.__closure__ is None or getattr(home, function.__code__.co_name, None) is function


def remembers_a_call(function: types.FunctionType, name: str, value: Any) -> bool:
    """Return whether a closure variable of a library's function is a flag that the function itself sets when
    it runs, such as ``checked`` of ``torch.library.register_fake``."""
    return type(value) is bool and any(
        step.opname == "STORE_DEREF" and step.argval == name for step in dis.get_instructions(function)
    )


def is_library(cls: type) -> bool:
    """Return whether a class is of torch, of the standard library or of what torch is built on: it stands
    there
    under its name, or has no code of its own."""
    module = str(cls.__module__)
    if not known.is_own_module(module):
        return False
    home: Any = sys.modules.get(module)
    for part in cls.__qualname__.split("."):
        home = getattr(home, part, None)
    return home is cls or not any(map(_is_made_here, type.__getattribute__(cls, "__dict__").values()))


def _is_made_here(value: Any) -> bool:
    """Return whether a function of a class is of no library, or has what another function gave it."""
    function = getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType):
        return False
    return bool(function.__closure__) or not known.is_known(function.__code__)


def name_in_c(value: Any) -> tuple[str, bool]:
    """Return the name of a function in C, and whether it is of a library; else what it is, in words."""
    holder = getattr(value, "__self__", None)
    owner = getattr(value, "__objclass__", None) or (holder if isinstance(holder, type) else None)
    module = str(getattr(value, "__module__", None) or getattr(owner, "__module__", None) or "")
    module = module or (holder.__name__ if isinstance(holder, types.ModuleType) else "builtins")
    if known.is_own_module(module):
        return f"C {module}.{getattr(value, '__qualname__', value)}", True
    if owner is not None and not is_library(owner):
        return f"slot {getattr(value, '__name__', '')}", True
    return f"the C function {module}.{getattr(value, '__name__', '')}", False


def reached(
    module: types.ModuleType, names: Collection[str], value_of: Callable[[types.ModuleType, str], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of what code with these names may read of a library's module, and of the
    libraries' modules in it. ``value_of``: what a module has under a name, or `NOTHING`."""
    waiting, seen = [module], {id(module)}
    while waiting:
        one = waiting.pop()
        for name in dict.fromkeys(names):
            value = value_of(one, name)
            if value is NOTHING:
                continue
            if not known.is_library(value):
                yield f"{one.__name__}.{name}", value
            elif id(value) not in seen:
                seen.add(id(value))
                waiting.append(value)
