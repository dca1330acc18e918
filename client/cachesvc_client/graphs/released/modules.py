"""Finds what stands in a module of torch that its source did not put there.

A name that a source defines has to lead to the code that stands there, and any other function of torch has
to be one that the source names beside it. Names that a decorator copies (``__module__``, ``__qualname__``)
are not asked: code objects say file and name themselves.
"""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from .known import NOTHING, STATE, is_c_function, is_known, is_own_module, is_torchs, name_of, own_name
from .source import Source, assigned, has_name, source, together
from .wrappers import OPENED_SET, are_functions_known, are_stand_ins, functions_in, is_made, leads_to

_LEFT_OVER = frozenset(
    (
        "torch.Storage",
        "torch.distributed.rpc._get_debug_info",
        "torch._torch_docs.private_func",
        "torch._numpy._ufuncs.ufunc",
        "torch.distributed._functional_collectives.backend_impl",
        "torch._dynamo.polyfills.loader.polyfill_handler",
        "torch._dynamo.polyfills.loader.original_fn",
    )
)
"""Names that a loop of a module leaves behind, and one of torch's C code: nothing calls them."""


def module_changes(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the names of a module of torch under which something stands that its source did not put there."""
    names = vars(module)
    file = str(names.get("__file__"))
    for name, value in list(names.items()):
        kind = type(value)
        if kind is types.ModuleType and not _is_module_of(source(file), module, name, value):
            yield name, value
        if kind in STATE:
            continue
        if kind is types.FunctionType:
            # Written under this name at the top of the module, or of a module that is not torch's: no source
            # has to be read.
            code = value.__code__
            is_here = code.co_filename == file or (is_known(code) and not is_torchs(code))
            if is_here and value.__closure__ is None and name_of(value) == name:
                continue
        elif issubclass(kind, type) and value.__qualname__ == name and is_own_module(value.__module__ or ""):
            continue
        if _is_data(value):
            if name in source(file).classes:
                yield name, value
        elif not (_of_module(source(file), file, module, name, value) or is_added_to_module(module, name)):
            yield name, value


def _is_data(value: Any) -> bool:
    kind = type(value)
    if kind is types.FunctionType or kind in OPENED_SET:
        return False
    return kind.__module__ in _TYPING or not callable(value)


def _is_module_of(text: Source, module: types.ModuleType, name: str, value: types.ModuleType) -> bool:
    """Return whether a module is the one that Python imports under its name, and the text says that it stands
    under this one."""
    full = value.__name__
    last = full.rpartition(".")[2]
    if full.startswith("torch._C.") and getattr(sys.modules["torch._C"], last, None) is value:
        return True  # in no table of Python's
    if sys.modules.get(full) is not value or not is_own_module(full):
        return False
    if value is module or full in (name, f"{module.__name__}.{name}") or not has_name(text.text, name):
        return True
    where, there = text.imports.get(name, ("", ""))
    if where and vars(_module(where, module)).get(there) is value:
        return True
    if imported := re.findall(rf"(?m)^\s*import ([\w.]+) as {re.escape(name)}\b", text.text):
        return full in imported
    return last == name or text.names_together(name, {last})


def _of_module(text: Source, file: str, module: types.ModuleType, name: str, value: Any) -> bool:
    original = _c_function(name) if module.__name__ == "torch" else None
    if value is original is not None or f"{module.__name__}.{name}" in _LEFT_OVER:
        return True
    if issubclass(type(value), type):  # `isinstance` would ask objects that warn of themselves
        return _class_of_module(text, module, name, value)
    at_home = own_name(value) == name if is_c_function(value) else _is_at_home(value, name)
    if at_home and name not in text.functions and original is None:
        return True
    functions = [] if is_c_function(value) else list(functions_in(value))
    if not functions and type(value) is types.FunctionType:
        return True  # a hook of this client in a place where torch has nothing
    if not are_functions_known(functions):
        return False
    if name in text.functions:
        return leads_to(functions, file, name) or are_stand_ins(functions)
    if leads_to(functions, file, name):
        return True
    return _is_named(text, module, name, value, functions)


_TYPING = frozenset(("typing", "types", "typing_extensions", "collections.abc"))
"""Modules whose objects are types alone."""


def _class_of_module(text: Source, module: types.ModuleType, name: str, value: type) -> bool:
    if not is_own_module(value.__module__ or ""):
        return False
    if name in text.classes:
        return value.__qualname__ == name
    if value.__module__ == "torch.return_types":
        return True
    same = value.__name__ == name or module.__name__.startswith("torch._C")
    return (same and _c_function(name) is None) or _is_named(text, module, name, value)


def _c_function(name: str) -> Any:
    """Return the function of that name among those that torch has in C."""
    return getattr(sys.modules["torch"]._C._VariableFunctions, name, None)


def _is_at_home(value: Any, name: str) -> bool:
    """Return whether a function stands under its own name in its own module."""
    if type(value) is not types.FunctionType or value.__code__.co_name != name:
        return False
    home = str(value.__globals__.get("__name__"))
    return is_own_module(home) and vars(sys.modules.get(home, NOTHING)).get(name) is value


def _is_named(
    text: Source, module: types.ModuleType, name: str, value: Any, functions: Sequence[Any] = ()
) -> bool:
    """Return whether a module's text says that a value of torch's or the standard library's stands there."""
    where, there = text.imports.get(name, ("", ""))
    if where and vars(_module(where, module)).get(there) is value:
        return True
    if any(vars(_module(star, module)).get(name) is value for star in text.stars):
        return True
    kind = value if isinstance(value, type) else type(value)
    if not is_own_module(kind.__module__ or "") or (
        module.__name__ == "torch" and _c_function(name) is not None
    ):
        return False
    if f"global {name}\n" in text.text or re.search(rf"for [^\n]*\b{re.escape(name)}\b[^\n]* in ", text.text):
        return True
    if isinstance(value, type) and kind.__module__.partition(".")[0] != "torch":
        return assigned(text.text, name)
    is_object = kind is not types.FunctionType and not is_c_function(value) and not isinstance(value, type)
    holder = getattr(value, "__self__", None)
    is_object |= type(holder) is re.Pattern
    if (is_object or (functions and is_made(functions))) and (text.makes_names or assigned(text.text, name)):
        return True
    own = {part for one in functions for part in name_of(one).split(".")} or {own_name(value)}
    own |= {other for other, one in vars(module).items() if one is value and other != name}
    return text.names_together(name, own) or any(
        together(source(one.__code__.co_filename).text, name, own) for one in functions
    )


def _module(name: str, importer: types.ModuleType) -> types.ModuleType:
    """Return the loaded module that an import of ``importer`` names; an empty one if it is not loaded."""
    try:
        full = importlib.util.resolve_name(name, importer.__package__ or "")
    except ImportError:
        full = name
    return sys.modules.get(full, NOTHING)


def is_added_to_module(module: types.ModuleType, name: str) -> bool:
    """Return whether a program gave a module of torch a name that torch does not know: no code of torch's
    reads it, and a program that calls it is traced."""
    file = vars(module).get("__file__")
    if file is None or hasattr(builtins, name) or _c_function(name) is not None:
        return False
    text = source(str(file))
    starred = any(name in vars(_module(star, module)) for star in text.stars)
    return not starred and not has_name(text.text, name)
