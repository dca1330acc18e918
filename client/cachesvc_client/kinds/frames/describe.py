"""Describes code and objects in words that are equal in every process with the same code."""

from __future__ import annotations

import contextvars
import enum
import gc
import hashlib
import re
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .groups import describe_of_job
from .stored import TracedFunction

_PLAIN = (bool, int, float, str, bytes, complex)
_OF_KEYS = ("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK")
"""Guards that compare the keys of a mapping."""
_PYTHONS_OWN = {
    *("__doc__", "__module__", "__dict__", "__weakref__", "__annotations__", "__annotate__", "_abc_impl"),
    *("__annotate_func__", "__annotations_cache__", "__abstractmethods__", "__firstlineno__"),
    *("__static_attributes__", "__slotnames__"),
}
"""Attributes of classes that Python makes, some of them later, and that no trace reads."""
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
        return name if value.__module__ == "builtins" else f"{name} {class_digest(value)}"
    if hasattr(value, "__qualname__"):
        return f"{type(value).__name__} {value.__module__}.{value.__qualname__}"
    if value is None or value is Ellipsis or isinstance(value, (*_PLAIN, torch.dtype, torch.device)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, contextvars.ContextVar):
        return f"ContextVar {value.name}"  # its value has a guard of its own
    if isinstance(value, enum.Enum):
        return f"{describe(type(value))}.{value.name} {text_of(value.value)}"
    if type(value) in (dict, list, tuple, set, frozenset):
        return f"{type(value).__name__} of {len(value)} {_digest(text_of(value))}"
    if words := describe_of_job(value):
        return words
    raise TypeError(f"an object of {type(value).__module__}.{type(value).__qualname__} has no description")


def describe_guarded(guard: Any, value: Any) -> str:
    """Return what a guard compares of its object. Raises ``TypeError`` as `describe`."""
    import torch

    kind = guard.create_fn_name()
    if kind == "TYPE_MATCH":
        return describe(type(value))
    if kind == "HASATTR":
        attribute = [*guard.create_fn.args, *guard.create_fn.keywords.values()][0]
        return f"{attribute} {hasattr(value, attribute)}"
    if kind in _OF_KEYS and "DICT_VERSION" not in (guard.guard_types or ()):
        return f"{describe(type(value))} {_digest(text_of([*value.keys()]))}"
    if kind == "SEQUENCE_LENGTH":
        return f"{describe(type(value))} of {len(value)}"
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    return describe(value)


def _tensor(value: Any) -> str:
    import torch

    layout = (tuple(value.shape), value.stride()) if value.layout is torch.strided else value.layout
    keys = torch._C._dispatch_keys(value)
    return f"{describe(type(value))} {value.dtype} {value.device} {layout} {value.requires_grad} {keys}"


def class_digest(kind: type) -> str:
    """Return the digest of the names that a class and its bases have attributes under."""
    parts = [
        f"{one.__module__}.{one.__qualname__} {sorted(vars(one).keys() - _PYTHONS_OWN)}"
        for one in kind.__mro__
        if one.__module__ != "builtins"
    ]
    return _digest("\n".join(parts))


def code_digest(code: types.CodeType) -> str:
    """Return the digest of a code object and of the code inside of it, without its place in the source."""
    constants = [
        code_digest(one) if isinstance(one, types.CodeType) else _constant(one) for one in code.co_consts
    ]
    parts = (
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        getattr(code, "co_exceptiontable", b""),
        constants,
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def function_digest(function: types.FunctionType) -> str:
    """Return the digest of a function's code and of its plain default values."""
    defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    return _digest(f"{code_digest(function.__code__)} {[_constant(value) for value in defaults]}")


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
        elif module and code.co_filename != "<string>" and (digest := _file_digest(module)):
            traced[TracedFunction(module, "", digest)] = None
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
    for module, name, digest in traced:
        if not name:
            now = _file_digest(module)
        else:
            function = _function_of(module, name)
            now = function_digest(function) if function is not None else ""
        if now != digest:
            return f"{module}.{name}" if name else f"the file of {module}"
    return ""


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


def _constant(value: Any) -> str:
    """Return a constant of a code object, or a default value, as a text without addresses."""
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(_constant, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({', '.join(sorted(map(_constant, value)))})"
    if value is None or value is Ellipsis or isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
