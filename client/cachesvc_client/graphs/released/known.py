"""Tells code of torch, of the standard library and of what torch is built on from other code, by its file."""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .source import source

_LIBRARIES = (
    "sympy", "mpmath", "numpy", "torchgen", "triton", "typing_extensions", "networkx", "jinja2", "filelock",
    "fsspec",
    "packaging", "yaml", "tqdm", "optree", "cuda",
)  # fmt: skip
"""Packages beside the standard library whose functions torch's own modules import."""
_FROZEN = ("<frozen ", "<__array_function__")
"""Beginnings of the file of the standard library's own frozen code, and of numpy's."""
GENERATED = "<string>"
"""The file of functions that the standard library writes for a class: of a dataclass, a named tuple."""
_WRITES = ("torch.", "torchgen.", "namedtuple_")
"""Beginnings of the names of modules for which the standard library writes such functions."""
OURS: tuple[str, ...] = (
    os.path.join(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)), ""),
)
"""Folders whose functions stand for what they replaced: this client, and what `warm` adds without a GPU."""
_C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
C_KINDS = frozenset(_C_FUNCTIONS)


@functools.cache
def torch_folder() -> str:
    """Return the folder of the loaded torch, with a separator at its end."""
    return os.path.dirname(str(sys.modules["torch"].__file__)) + os.sep


def known_folders() -> tuple[str, ...]:
    """Return the folders whose code is of torch, of the standard library or of what torch is built on."""
    return (torch_folder(), *_standard(), *folders_of(_LIBRARIES))


def folders_of(modules: Iterable[str]) -> Iterator[str]:
    """Yield the folder of each package that is loaded, and the file of each loaded module of one file."""
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            yield os.path.dirname(file) + os.sep if file.endswith("__init__.py") else file


@functools.cache
def _standard() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.join(paths[one], "") for one in ("stdlib", "platstdlib"))


def name_of(function: types.FunctionType) -> str:
    """Return the name under which a function's code was written: ``Class.method``,
    ``outer.<locals>.inner``."""
    return getattr(function.__code__, "co_qualname", None) or str(function.__qualname__)


def is_ours(code: types.CodeType) -> bool:
    """Return whether code is of a hook of this client, which runs what it replaced."""
    return code.co_filename.startswith(OURS)


def is_torchs(code: types.CodeType) -> bool:
    """Return whether code was written in a file of torch."""
    return code.co_filename.startswith(torch_folder())


_known_files: set[str] = set()
"""Files that were found to be known. Of the others, each may be of a package that is imported later."""


def _is_known_file(file: str) -> bool:
    folders = known_folders()
    if "site-packages" in file or "dist-packages" in file:
        return file.startswith(tuple(one for one in folders if "-packages" in one))
    return file.startswith(folders) or file.startswith(_FROZEN)


def is_known(code: types.CodeType) -> bool:
    """Return whether code is of torch, of the standard library or of a package that torch imports."""
    file = code.co_filename
    if file not in _known_files:
        if not _is_known_file(file):
            return False
        _known_files.add(file)
    return True


def are_files_known(values: Sequence[Any]) -> bool:
    """Return whether the functions among these values are of known files, or the standard library wrote
    them: a decorator of a program's own can stand in the place of one of the standard library's."""
    functions = [value for value in values if type(value) is types.FunctionType]
    codes = {one.__code__.co_filename: one.__code__ for one in functions}
    written = (one for one in functions if one.__code__.co_filename == GENERATED)
    return all(file == GENERATED or is_known(code) for file, code in codes.items()) and all(
        str(one.__globals__.get("__name__")).startswith(_WRITES) for one in written
    )


def own_name(value: Any) -> str:
    """Return the name that a C function or a class has by itself."""
    return str(getattr(value, "__name__", ""))


def is_c_function(value: Any) -> bool:
    """Return whether a value is a function that is written in C."""
    return isinstance(value, _C_FUNCTIONS) or type(value).__name__ == "instancemethod"


def is_own_module(name: str) -> bool:
    """Return whether a module of that name is of torch or of a package that torch is built on."""
    top = name.partition(".")[0]
    return top == "torch" or top in _LIBRARIES or top in sys.stdlib_module_names


def is_library(value: Any) -> bool:
    """Return whether a value is a module of torch or of a package that torch is built on: the one that Python
    imports under its name, or one of those of torch that stand nowhere."""
    if not isinstance(value, types.ModuleType) or not is_own_module(value.__name__):
        return False
    default = value if value.__name__.startswith("torch.") else None
    is_made = type(value) is types.ModuleType and getattr(value, "__spec__", None) is None
    is_made &= not value.__name__.startswith("torch._C")
    return sys.modules.get(value.__name__, default) is value and not is_made


STATE = frozenset(
    (str, int, float, bool, complex, bytes, type(None), types.ModuleType, dict, list, set, tuple, frozenset)
)
"""Types of values in a namespace that are no code."""
NOTHING = types.ModuleType("nothing")
OF_PYBIND = ("pybind11_detail_function_record", "PyCapsule")
"""How the names of types begin with which pybind11 keeps what is behind a function of a module."""


def owner_of(function: Any) -> Any:
    """Return the object that a function in C belongs to; ``None`` for a function of a module."""
    owner = getattr(function, "__self__", None)
    of_module = isinstance(owner, types.ModuleType) or type(owner).__name__.startswith(OF_PYBIND)
    return None if of_module else owner


_PLAIN_DATA = frozenset((str, int, float, bool, complex, bytes, type(None)))


def is_constant(holder: Any, name: str, value: Any) -> bool:
    """Return whether a name leads to a value that the text of its module or class puts there once: to a
    function or class, or to data that the text names.

    What the text puts there again, such as in a function, is state.
    """
    if name.startswith("__") and not callable(value):
        return False
    module = sys.modules.get(holder.__module__) if isinstance(holder, type) else holder
    text = source(str(getattr(module, "__file__", ""))).text
    again = rf"\bglobal [^\n]*\b{re.escape(name)}\b|\.{re.escape(name)}(?:: [^\n=]+)? [-+*|]?= "
    if re.search(again, text) is not None:
        return False
    return callable(value) or re.search(rf"\b{re.escape(name)}\b", text) is not None


def are_alike(one: Any, other: Any) -> bool:
    """Return whether two values are one object, or equal plain values of one type."""
    return one is other or (type(one) is type(other) in _PLAIN_DATA and repr(one) == repr(other))
