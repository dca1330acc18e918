"""Tells what torch's own sources put under a name from what a program put there later.

A graph names functions of torch, and a trace runs torch's Python. PyTorch's keys have the version of torch,
so
they have what its sources define, and nothing of what a program assigned into its modules and classes. So the
loaded modules are compared with their own sources: a name that a source defines has to lead to the code that
stands there, and any other function of torch has to be one that the source names beside it. Names that a
decorator copies (``__module__``, ``__qualname__``) are not asked: code objects say file and name themselves.
"""

from __future__ import annotations

import builtins
import functools
import importlib.util
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_LIBRARIES = (
    "sympy", "mpmath", "numpy", "torchgen", "triton", "typing_extensions", "networkx", "jinja2", "filelock",
    "fsspec",
    "packaging", "yaml", "tqdm", "optree", "cuda",
)  # fmt: skip
"""Packages beside the standard library whose functions torch's own modules import."""
_FROZEN = ("<frozen ", "<__array_function__")
"""Beginnings of the file of the standard library's own frozen code, and of numpy's."""
_GENERATED = "<string>"
"""The file of functions that the standard library writes for a class: of a dataclass, a named tuple."""
_WRITES = ("torch.", "torchgen.", "namedtuple_")
"""Beginnings of the names of modules for which the standard library writes such functions."""
_STAND_INS = frozenset(("_raise_error", "_overload_dummy", "_dummy_fn", "_no_init_or_replace_init"))
"""Functions that torch and ``typing`` put in the place of one that is not there on this machine."""
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
_DEEPEST = 8
"""How many wrappers of a function are opened."""
_MOST_ITEMS = 50
"""Items of the largest container in which functions are searched for."""
_WRAPPED = ("__wrapped__", "func", "fn", "__func__", "fget", "_func", "cached_property")
"""Attributes under which wrappers of torch and of the standard library keep what they wrap."""
_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_C_KINDS = frozenset(_C_FUNCTIONS)
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
    return code.co_filename.startswith(_OURS)


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
    written = (one for one in functions if one.__code__.co_filename == _GENERATED)
    return all(file == _GENERATED or is_known(code) for file, code in codes.items()) and all(
        str(one.__globals__.get("__name__")).startswith(_WRITES) for one in written
    )


def _are_known(functions: Sequence[Any]) -> bool:
    """Return whether all functions are known, those that a module of torch compiles from a text among
    them."""
    return all(is_known(one.__code__) or is_compiled(one) for one in functions)


def is_compiled(function: types.FunctionType) -> bool:
    if function.__code__.co_filename != _GENERATED:
        return False
    home = sys.modules.get(str(function.__globals__.get("__name__")), _NOTHING)
    if home.__name__.startswith("torch.") and vars(home) is function.__globals__:
        return True
    handler = getattr(sys.modules.get("torch._inductor.ops_handler"), "DefaultHandler", None)
    if handler is not None and vars(handler).get(function.__code__.co_name) is function:
        return True
    cached = function.__globals__.get("fn")  # how Inductor keeps a method's result on its object
    file = cached.__code__.co_filename if isinstance(cached, types.FunctionType) else ""
    return file.startswith(os.path.join(torch_folder(), "_inductor", "")) and "_on_self" in source(file).text


class Source:
    """Holds what the text of one module defines and names.

    ``functions`` and ``classes``: what it defines at its left margin.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        text = b"\n" + self._read()
        self.functions = {part[: part.find(b"(")].decode() for part in text.split(b"\ndef ")[1:]}
        parts = text.split(b"\nclass ")[1:]
        self.classes = {re.split(rb"[(:\[]", part[:80], maxsplit=1)[0].decode() for part in parts}

    def _read(self) -> bytes:
        try:
            with open(self._file, "rb") as file:
                return file.read()
        except OSError:
            return b""

    @functools.cached_property
    def text(self) -> str:
        """Return the module's text; an empty one where there is no file."""
        return self._read().decode("utf-8", "replace")

    @functools.cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Return the names that the text imports from other modules: name here -> module and name there."""
        found = {}
        for module, names in re.findall(r"from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)", self.text):
            for part in re.sub(r"#[^\n]*", "", names).strip("()").split(","):
                there, _, here = part.strip().partition(" as ")
                found[here.strip() or there] = (module, there.strip())
        return found

    @functools.cached_property
    def decorators(self) -> dict[str, str]:
        """Return the lines between the definition before a function and the function, by its name."""
        found: dict[str, str] = {}
        for part in self.text.split("\n\n\n"):
            lines, separator, rest = f"\n{part}".partition("\ndef ")
            if separator:
                found.setdefault(rest[: rest.find("(")], lines)
        return found

    @functools.cached_property
    def stars(self) -> list[str]:
        """Return the modules of which the text imports everything."""
        return re.findall(r"from\s+([\w.]+)\s+import \*", self.text)

    @functools.cached_property
    def makes_names(self) -> bool:
        """Return whether the text makes names that it does not write down."""
        return "globals()" in self.text or "setattr(" in self.text or "vars()" in self.text

    def names_together(self, name: str, others: set[str]) -> bool:
        """Return whether one statement has a name and one of the others."""
        return together(self.text, name, others)


def words(text: str, name: str) -> Iterator[int]:
    """Yield the places of a word in a text."""
    place = text.find(name)
    while place >= 0:
        end = place + len(name)
        before, after = text[place - 1 : place], text[end : end + 1]
        if not (before.isalnum() or before == "_" or after.isalnum() or after == "_"):
            yield place
        place = text.find(name, end)


def together(text: str, name: str, others: set[str]) -> bool:
    """Return whether a statement of a text puts something of the other names under a name."""
    for place in words(text, name):
        rest = text[place + len(name) : place + len(name) + 300]
        put = (
            rest.lstrip("\"'] ")[:1] in ("=", ":", ",")
            or text[place - 3 : place] == "as "
            or text[place - 1] in "\"'"
        )
        if not put:
            continue
        line = _statement(text, place)
        if not others.isdisjoint(re.findall(r"\w+", line)):
            return True
    return False


def _statement(text: str, place: int) -> str:
    """Return the line of a place in a text, with up to three lines after it that lie deeper."""
    begin, end = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    margin = len(text[begin:place]) - len(text[begin:place].lstrip())
    for _ in range(3):
        following = text[end + 1 : end + 2 + margin]
        if end < 0 or following.strip():
            break
        end = text.find("\n", end + 1)
    return text[begin : end if end >= 0 else None]


def assigned(text: str, name: str) -> bool:
    """Return whether a text assigns a value to a name."""
    return any(
        text[place + len(name) :].lstrip()[:1] in ("=", ":", ",")
        or text[max(0, place - 4) : place] in ("for ", " as ")
        for place in words(text, name)
    )


@functools.cache
def source(file: str) -> Source:
    """Return what a module's file defines and names."""
    return Source(file)


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


def own_name(value: Any) -> str:
    """Return the name that a C function or a class has by itself."""
    return str(getattr(value, "__name__", ""))


def is_c_function(value: Any) -> bool:
    """Return whether a value is a function that is written in C."""
    return isinstance(value, _C_FUNCTIONS) or type(value).__name__ == "instancemethod"


@functools.cache
def in_class(file: str, qualified: str) -> str:
    """Return the part of a module's text that defines a class; an empty text if it has none of that name."""
    text, name = source(file).text, qualified.rpartition(".")[2]
    for place in words(text, name):
        margin = text[text.rfind("\n", 0, place) + 1 : place - len("class ")]
        if text[place - len("class ") : place] == "class " and not margin.strip():
            break
    else:
        return ""
    end = _next_statement(margin).search(text, place)
    return text[place : end.start() if end else len(text)]


@functools.cache
def _next_statement(margin: str) -> re.Pattern[str]:
    return re.compile(rf"\n{margin}(?:class |def |@|async def |if |for )")


def leads_to(functions: list[Any], file: str, name: str) -> bool:
    """Return whether one of the functions is the code ``name`` of ``file``."""
    return any(one.__code__.co_filename == file and name_of(one) == name for one in functions)


def is_own_module(name: str) -> bool:
    """Return whether a module of that name is of torch or of a package that torch is built on."""
    top = name.partition(".")[0]
    return top == "torch" or top in _LIBRARIES or top in sys.stdlib_module_names


def module_changes(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the names of a module of torch under which something stands that its source did not put there."""
    names = vars(module)
    file = str(names.get("__file__"))
    for name, value in list(names.items()):
        kind = type(value)
        if kind in _STATE:
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
        if kind.__module__ in _TYPING and kind is not types.FunctionType and kind not in _OPENED_SET:
            continue
        if (
            (kind is types.FunctionType or callable(value))
            and not _of_module(source(file), file, module, name, value)
            and not is_added_to_module(module, name)
        ):
            yield name, value


OPERATORS = "torch._ops"
"""The module of the classes of ``torch.ops.NAMESPACE`` and ``torch.ops.NAMESPACE.OPERATOR``."""


def operator_holders(holder: Any) -> Iterator[Any]:
    """Yield the namespaces of ``torch.ops``, or the operators of a namespace, that were used already."""
    kinds = ("_OpNamespace", "OpOverloadPacket")
    for value in list(vars(holder).values()):
        if type(value).__module__ == OPERATORS and type(value).__name__ in kinds:
            yield value


def operator_name(holder: Any) -> str:
    """Return the name of a namespace of operators, or of an operator with its namespace."""
    return str(getattr(holder, "_qualified_op_name", "")).replace("::", ".") or str(holder.name)


def operator_changes(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names of a namespace of operators, or of an operator, under which something else stands than
    the operator, or the overload, of that name."""
    own, overloads = operator_name(holder), ("_op", "default", *getattr(holder, "_overload_names", ()))
    for name, value in list(vars(holder).items()):
        if hasattr(holder, "_overload_names") and name not in overloads:
            continue  # what torch keeps there beside the overloads, and no call of the operator uses
        if not callable(value) or (name == "_op" and is_c_function(value)):
            continue
        if getattr(value, "_overloadpacket", None) is holder and value._overloadname == name:
            continue
        said = str(getattr(value, "_qualified_op_name", "")).replace("::", ".")
        if type(value).__module__ == OPERATORS and said == f"{own}.{name}":
            continue
        if own == "higher_order" and getattr(value, "_name", None) == name:
            continue
        yield name, value


_STATE = frozenset(
    (str, int, float, bool, complex, bytes, type(None), types.ModuleType, dict, list, set, tuple, frozenset)
)
"""Types of values in a namespace that are no code."""


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
    if not _are_known(functions):
        return False
    if name in text.functions:
        return leads_to(functions, file, name) or _are_stand_ins(functions)
    if leads_to(functions, file, name):
        return True
    return _is_named(text, module, name, value, functions)


_OPENED_SET = frozenset(OPENED)
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
    return is_own_module(home) and vars(sys.modules.get(home, _NOTHING)).get(name) is value


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


def is_made(functions: Sequence[Any]) -> bool:
    """Return whether another function made the first one: a decorator, or a loop over names."""
    return name_of(functions[0]).endswith("<lambda>") or "<locals>" in name_of(functions[0])


def _are_stand_ins(functions: Sequence[Any]) -> bool:
    return bool(functions) and all(one.__code__.co_name in _STAND_INS for one in functions)


def _module(name: str, importer: types.ModuleType) -> types.ModuleType:
    """Return the loaded module that an import of ``importer`` names; an empty one if it is not loaded."""
    try:
        full = importlib.util.resolve_name(name, importer.__package__ or "")
    except ImportError:
        full = name
    return sys.modules.get(full, _NOTHING)


_NOTHING = types.ModuleType("nothing")


OF_PYBIND = ("pybind11_detail_function_record", "PyCapsule")
"""How the names of types begin with which pybind11 keeps what is behind a function of a module."""


def owner_of(function: Any) -> Any:
    """Return the object that a function in C belongs to; ``None`` for a function of a module."""
    owner = getattr(function, "__self__", None)
    of_module = isinstance(owner, types.ModuleType) or type(owner).__name__.startswith(OF_PYBIND)
    return None if of_module else owner


def is_added_to_module(module: types.ModuleType, name: str) -> bool:
    """Return whether a program gave a module of torch a name that torch does not know: no code of torch's
    reads it, and a program that calls it is traced."""
    file = vars(module).get("__file__")
    if file is None or hasattr(builtins, name) or _c_function(name) is not None:
        return False
    text = source(str(file))
    starred = any(name in vars(_module(star, module)) for star in text.stars)
    return not starred and not _has_name(text.text, name)


def is_added_to_class(cls: type, name: str) -> bool:
    """Return whether a program gave a class of torch an attribute that neither the class nor a base of it had
    before. A special method is none: Python reads it by itself."""
    if name.startswith("__") or any(name in vars(base) for base in cls.__mro__[1:]):
        return False
    file = file_of_class(cls)
    return bool(file) and not _has_name(source(file).text, name)


def _has_name(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def class_changes(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class of torch that its source did not put there."""
    qualified = cls.__qualname__
    for name, value in list(vars(cls).items()):
        kind = type(value)
        if kind in _STATE:
            continue
        function = value
        if kind is staticmethod or kind is classmethod:
            function = value.__func__
        elif kind is property:
            function = value.fget
        if type(function) is types.FunctionType:
            code = function.__code__
            if function.__closure__ is None and not function.__dict__:
                is_written = name_of(function) == f"{qualified}.{name}" and is_torchs(code)
                is_given = name.startswith("_") and not is_torchs(code) and is_known(code)
                if is_written or is_given or _is_of_dataclass(cls, name, function):
                    continue
        elif _is_of_c(kind, name, value) or not (callable(value) or hasattr(kind, "__get__")):
            continue
        if not _of_class(cls, file_of_class(cls), name, value) and not is_added_to_class(cls, name):
            yield name, value


def _is_of_c(kind: type, name: str, value: Any) -> bool:
    """Return whether a value is a function in C that has the name by itself."""
    is_function = kind in _C_KINDS or kind.__name__ == "instancemethod"
    return is_function and getattr(value, "__name__", name) == name


@functools.cache
def file_of_class(cls: type) -> str:
    """Return the file of torch where a class was written. Its ``__module__`` may name another one."""
    file = str(getattr(sys.modules.get(cls.__module__ or ""), "__file__", ""))
    if "." in cls.__qualname__ or cls.__name__ in source(file).classes:
        return file
    written = (
        value.__code__.co_filename
        for name, value in vars(cls).items()
        if type(value) is types.FunctionType and name_of(value) == f"{cls.__qualname__}.{name}"
    )
    return next(written, file)


def _of_class(cls: type, file: str, name: str, value: Any) -> bool:
    tensor = sys.modules["torch"].Tensor
    if cls is not tensor and vars(tensor).get(name) is value:
        return True
    if any(vars(base).get(name) is value for base in cls.__mro__[1:]):
        return True
    text = in_class(file, cls.__qualname__) or source(file).text
    if is_c_function(value):
        own_text = in_class(file, cls.__qualname__)
        same = own_name(value) in (name, "") or not own_text or _is_given(name, value)
        return same or together(own_text, name, {own_name(value)})
    kind = value if isinstance(value, type) else type(value)
    is_state = not (callable(value) or kind in _OPENED_SET or hasattr(kind, "__get__"))
    functions = [] if is_state else list(functions_in(value))
    if not functions:
        return is_own_module(kind.__module__ or "") or not callable(value)
    if _is_generated(cls, name, functions):
        return True
    if not _are_known([one for one in functions if not _is_of_dataclass(cls, name, one)]):
        return False
    plain = name.removeprefix(f"_{cls.__name__.lstrip('_')}") if "__" in name[2:] else name
    if leads_to(functions, file, f"{cls.__qualname__}.{plain}") or _are_stand_ins(functions):
        return True
    own = {part for one in functions for part in name_of(one).split(".")}
    own -= {name, cls.__name__, "<locals>"}
    native = any(is_c_function(vars(base).get(name)) for base in cls.__mro__[1:-1])
    is_free = name.startswith("__") or not (native or f" def {name}(" in text)
    if is_free and not any(is_torchs(one.__code__) for one in functions):
        return True
    if together(text, name, own):
        return True
    files = {one.__code__.co_filename for one in functions}
    if any(_puts(source(one).text, name, own) for one in (file, *files)):
        return True
    is_object = type(value) not in (types.FunctionType, staticmethod, classmethod, property)
    if f" {name} = " in text or f" {name}: " in text or (is_object and f".{name} = " in source(file).text):
        return True
    if not in_class(file, cls.__qualname__) and file in files and name_of(functions[0]).endswith(f".{name}"):
        return True
    sets = "setattr(" in source(file).text or "vars()[" in text or "locals()[" in text
    if f"\n    def {name}(" in text:
        return is_made(functions) and any("setattr(" in source(one).text for one in files - {file})
    return (is_object or is_made(functions)) and (sets or not native or assigned(text, name))


def _puts(text: str, name: str, own: set[str]) -> bool:
    """Return whether a text puts something of these names into a class: ``Class.name = own``."""
    lines = (text[text.rfind("\n", 0, place) : text.find("\n", place)] for place in words(text, name))
    return any(f".{name} = " in line and not own.isdisjoint(re.findall(r"\w+", line)) for line in lines)


def _is_of_dataclass(cls: type, name: str, function: types.FunctionType) -> bool:
    if function.__code__.co_filename != _GENERATED:
        return False
    home = str(getattr(sys.modules.get(cls.__module__ or ""), "__file__", ""))
    return ("__dataclass_fields__" in vars(cls) and name.startswith("__")) or "exec(" in in_class(
        home, cls.__qualname__
    )


def _is_given(name: str, value: Any) -> bool:
    """Return whether Python or torch's C code gives a class a C function under another name."""
    return (name, own_name(value)) in (
        ("__torch_function__", "_disabled_torch_function_impl"),
        ("__torch_dispatch__", "_disabled_torch_dispatch_impl"),
        ("_value_repr_", "__repr__"),
        ("_new_member_", "__new__"),
        ("__new_member__", "__new__"),
        ("__new__", "__new__"),
    )


def _is_generated(cls: type, name: str, functions: Sequence[Any]) -> bool:
    """Return whether the standard library wrote functions for a dataclass, a named tuple or an
    enumeration."""
    if not (name.startswith("__") or name in ("_make", "_replace", "_asdict")):
        return False
    if not {"__dataclass_fields__", "_fields", "_member_map_", "__attrs_attrs__"} & vars(cls).keys():
        return False
    first = functions[0].__code__
    return not is_torchs(first) and all(
        one.__code__.co_filename == _GENERATED or is_known(one.__code__) for one in functions
    )
