"""Describes code and objects in words that are equal in every process with the same code."""

from __future__ import annotations

import contextvars
import enum
import gc
import hashlib
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ....graphs.code.constants import PLAIN, code_digest, own_attributes
from ....graphs.code.followed import FollowedCode
from ....graphs.code.library import is_kernel
from ....graphs.released import known
from ..stored import TracedFunction
from .digests import class_digest, digest, function_digest
from .groups import describe_of_job

_OF_C = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.MethodWrapperType, types.ClassMethodDescriptorType, types.GetSetDescriptorType),
    types.MemberDescriptorType,
)
"""Types of functions and descriptors that are written in C."""
_WHEN_MADE = frozenset({
    *("__new__", "__init__", "__init_subclass__", "__set_name__", "__prepare__", "__call__", "__dir__"),
    *("__reduce__", "__reduce_ex__", "__getnewargs__", "__instancecheck__", "__subclasscheck__"),
})  # fmt: skip
"""Methods that Python calls when it makes or copies an object, or that a trace compares by itself."""
_LIBRARIES = frozenset(("torch", *sys.stdlib_module_names))
"""Packages whose classes are compared otherwise."""
_KEYS: Any = type({0: 0}.keys())
_FROZEN = re.compile(r"<frozen ([\w.]+)>")
"""The file of the code of a module that is a part of the interpreter."""


def describe(value: Any) -> str:
    """Return what an object is. Raises ``TypeError`` for an object that has no such words."""
    import torch

    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, types.CodeType):
        return f"code {code_digest(value)}"
    if isinstance(value, types.FunctionType):
        return f"function {value.__module__}.{value.__qualname__} {function_digest(value)}"
    if isinstance(value, types.MethodType):
        return f"method {describe(value.__func__)} of {describe(type(value.__self__))}"
    if isinstance(value, type):
        name = f"{type(value).__name__} {value.__module__}.{value.__qualname__}"
        own = value.__module__ != "builtins"
        return f"{name} {class_digest(value)}{_untraced_text(value)}" if own else name
    if isinstance(value, _OF_C):
        return _describe_function_of_c(value)
    ops = torch._ops
    if isinstance(value, (ops.OpOverload, ops.OpOverloadPacket, ops.HigherOrderOperator)):
        return f"operator {value!s}"
    if isinstance(value, torch._library.custom_ops.CustomOpDef):
        return f"operator {value._qualname}"
    if value is None or value is Ellipsis or isinstance(value, (*PLAIN, torch.dtype, torch.device)):
        return f"{type(value).__name__} {value!r}"
    if is_kernel(value):
        return f"kernel {followed_digest([value], 'a Triton kernel')}"
    if isinstance(value, contextvars.ContextVar):
        return f"ContextVar {value.name}"  # its value has a guard of its own
    if isinstance(value, enum.Enum):
        return f"{describe(type(value))}.{value.name} {text_of(value.value)} {own_attributes(value)}"
    if type(value) is dict:  # a trace may go through it in its order
        return f"dict of {len(value)} {digest(text_of([*value.items()]))}"
    if type(value) in (list, tuple, set, frozenset):
        return f"{type(value).__name__} of {len(value)} {digest(text_of(value))}"
    if isinstance(value, (slice, range, torch.Size, torch.layout, torch.memory_format)):
        return f"{type(value).__name__} {value!r}"
    if words := describe_of_job(value):
        return words
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes") and getattr(value, "ndim", 1) == 0:
        return f"numpy {value.dtype} {value.tobytes().hex()}"
    if isinstance(value, _KEYS):
        return f"keys {text_of([*value])}"
    raise TypeError(f"an object of {type(value).__module__}.{type(value).__qualname__} has no description")


def _untraced_text(kind: type) -> str:
    """Return a digest of the program's code that Python runs of a class by itself: which member of an
    enumeration has a value, whether a number of its own class is true, what a metaclass says. Dynamo runs it
    too, and does not trace it. Raise ``TypeError`` where that code reads what has no description."""
    found = (one for one in _untraced(kind) if one is not None)
    own = [one for one in found if getattr(one, "__globals__", None) is not vars(enum)]
    if not own:
        return ""
    return f" {followed_digest(own, f'the code of {kind.__qualname__}')}"


def followed_digest(roots: Iterable[Any], what: str) -> str:
    """Return the digest of code with all that it reads. Raises ``TypeError`` if that has no description."""
    followed = FollowedCode(roots)
    if followed.unknown:
        raise TypeError(f"{what} reads what has no description: {followed.unknown}")
    return followed.digest


def _untraced(kind: type) -> Iterator[Any]:
    """Yield the functions of a class that Dynamo runs and does not trace."""
    if issubclass(kind, enum.Enum):
        yield from (kind._missing_.__func__, type(kind).__call__)  # type: ignore[attr-defined]
    metaclass: type = type(kind)
    if metaclass is not type:
        for one in filter(_is_of_program, metaclass.__mro__):
            yield from _called_by_python(one)
    of_values = issubclass(kind, (enum.Enum, *PLAIN))
    for one in filter(_is_of_program, kind.__mro__):
        yield getattr(vars(one).get("__class_getitem__"), "__func__", None)
        yield getattr(vars(one).get("__class__"), "fget", None)
        if of_values:
            yield from _called_by_python(one)


def _called_by_python(kind: type) -> Iterator[Any]:
    """Yield the functions of a class that Python calls by itself, and those of its properties."""
    for name, value in list(vars(kind).items()):
        if isinstance(value, types.FunctionType):
            if name.startswith("__") and name.endswith("__") and name not in _WHEN_MADE:
                yield value
        elif (getter := getattr(value, "fget", None) or getattr(value, "func", None)) is not None:
            yield getter


def _is_of_program(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in _LIBRARIES


def _describe_function_of_c(value: Any) -> str:
    """Return the name of a function or descriptor that is written in C. Raise ``TypeError`` for a method of
    an object: two objects have methods of one name."""
    owner = known.owner_of(value)
    if owner is not None and not isinstance(owner, type):
        raise TypeError(f"a method of an object of {type(owner).__qualname__} has no description")
    of_class = getattr(value, "__objclass__", None)
    place = f"{of_class.__module__}.{of_class.__qualname__}" if of_class else getattr(value, "__module__", "")
    return f"{type(value).__name__} {place}.{getattr(value, '__qualname__', value.__name__)}"


def traced_functions(codes: Iterable[types.CodeType]) -> tuple[TracedFunction, ...]:
    """Return the functions that these code objects belong to.

    A code object that no module has under its name stands for its whole file. Raises ``LookupError`` for code
    of no file.
    """
    modules = _modules_by_file()
    traced: dict[TracedFunction, None] = {}
    for code in codes:
        module, name = _place(code, modules)
        function = _function_of(module, name)
        if function is not None and _holds(function.__code__, code):
            traced[TracedFunction(module, name, function_digest(function))] = None
        elif module and code.co_filename != "<string>" and (of_file := _file_digest(module)):
            traced[TracedFunction(module, "", of_file)] = None
        else:
            raise LookupError(f"{code.co_name} of {code.co_filename} is the code of no module")
    return tuple(traced)


def _place(code: types.CodeType, modules: Mapping[str, str]) -> tuple[str, str]:
    """Return the module and the qualified name of the function that a code object belongs to; an empty module
    if none is known.

    The functions that ``dataclass`` makes have no file: they are found by what refers to their code.
    """
    if (frozen := _FROZEN.fullmatch(code.co_filename)) is not None:
        module = frozen[1]
    elif code.co_filename == "<string>":
        functions = [one for one in gc.get_referrers(code) if isinstance(one, types.FunctionType)]
        return (functions[0].__module__ or "", functions[0].__qualname__) if functions else ("", "")
    else:
        module = modules.get(code.co_filename, "")
    return module, getattr(code, "co_qualname", code.co_name).partition(".<locals>")[0]


def changed(traced: Iterable[TracedFunction]) -> str:
    """Return the first of these functions that is other code now, or is missing; else an empty text."""
    for module, name, recorded in traced:
        if not name:
            now = _file_digest(module)
        else:
            function = _function_of(module, name)
            now = function_digest(function) if function is not None else ""
        if now != recorded:
            return f"{module}.{name}" if name else f"the file of {module}"
    return ""


def has_name(kind: type) -> bool:
    """Return whether the class is found in its module under its name."""
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def _holds(outer: types.CodeType, code: types.CodeType) -> bool:
    """Return whether a code object is ``code`` or holds it."""
    return outer == code or any(
        _holds(one, code) for one in outer.co_consts if isinstance(one, types.CodeType)
    )


def _function_of(module: str, name: str) -> types.FunctionType | None:
    """Return the function that a module has under a qualified name, without what wraps it."""
    if not module or not name or "<" in name:
        return None
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = value.__dict__.get(part) if isinstance(value, type) else getattr(value, part, None)
    while not isinstance(value, types.FunctionType) or hasattr(value, "__wrapped__"):
        inner = next(
            (
                getattr(value, way)
                for way in ("__wrapped__", "__func__", "fget", "func")
                if getattr(value, way, None) is not None
            ),
            None,
        )
        if inner is None:
            return value if isinstance(value, types.FunctionType) else None
        value = inner
    return value


def _modules_by_file() -> dict[str, str]:
    return {
        str(file): name
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
    }


def _file_digest(module: str) -> str:
    """Return the digest of a module's source; empty if it has none, or is not imported."""
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except OSError:
        return ""


def text_of(value: Any) -> str:
    """Return a value as a text that is equal in every process. Raises ``TypeError`` for what has none."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{text_of(key)}: {text_of(one)}' for key, one in value.items()))}}}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"set({', '.join(sorted(map(text_of, value)))})"
    return describe(value)


def named(module: str, name: str) -> Any:
    """Return what a module has under a qualified name. Raises ``LookupError`` where there is none: nothing is
    imported."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    if value is None:
        raise LookupError(f"there is no {module}.{name}")
    return value
