"""Finds what code below Dynamo asks of libraries that is no function of its arguments: a setting, a file, a
registry, the machine.

Such an answer is in no key, and none can say how many such questions there are. So `by_arguments` lists what
is known to answer by its arguments alone, or to do something and answer nothing. Code that calls another
function of torch, of numpy or of the interpreter has no digest, unless `asked` compares the answer.
"""

from __future__ import annotations

import dis
import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, takewhile
from typing import Any

from ..released import known
from . import asked
from .by_arguments import (
    FUNCTIONS,
    MODULES,
    NOT_OPERATORS,
    NUMPY_ASKS,
    NUMPY_FUNCTIONS,
    TORCH_ACTIONS,
    TORCH_FUNCTIONS,
    TORCH_MODULES,
    TORCH_OPERATORS,
    TORCH_WITH_ARGUMENT,
)
from .library import NOTHING, is_library, operator_name, reached, stands_at_home, without_wrapper
from .reading import codes_in, names_in, texts_in
from .values import describe_plain, is_tensor, type_name

_RUNS_TEXT = frozenset(("exec", "eval", "compile", "input", "globals", "__import__"))
"""Built-in functions by which code depends on what no digest reaches."""
answered: set[str] = set()
"""Functions, by module and name, whose questions need no answer: of a pass that says what it is the ``uuid``,
which is in its description, and those that kinds add, which ask for the sources of code that is followed."""
_OF_LOGGERS = frozenset(
    ("level", "disabled", "handlers", "hasHandlers", "filters", "isEnabledFor", "getEffectiveLevel", "parent")
)
"""Names with which code asks a logger for its state."""
KINDS = (types.FunctionType, types.BuiltinFunctionType, functools._lru_cache_wrapper)


def of_value(value: Any) -> str:
    """Return what a function, class or object of a library is, where it does not answer by its arguments
    alone; an empty text for what does."""
    if isinstance(value, functools._lru_cache_wrapper):
        value = value.__wrapped__
    if isinstance(value, KINDS) and asked.is_compared(asked.place_of(value)):
        return ""
    if isinstance(value, types.FunctionType):
        return _of_function(f"{value.__globals__.get('__name__')}.{known.name_of(value)}", value)
    if type(value) is types.BuiltinFunctionType:
        return _of_c_function(f"{getattr(value, '__module__', None) or 'builtins'}.{value.__name__}", value)
    if isinstance(value, type):
        return _of_class(value)
    return ""


def of_path(name: str, value: Any, code: types.CodeType) -> Iterator[str]:
    """Yield what code asks of a module, a class or a function of a library, which it has under a name."""
    if name.startswith("import ") and isinstance(value, types.ModuleType):
        name = _kept_under(name.removeprefix("import "), code)
        if not name:
            yield from filter(None, _of_escaped(value, (*names_in(code), *texts_in(code))))
        value = sys.modules[value.__name__.partition(".")[0]]
    if not isinstance(value, (types.ModuleType, type, *KINDS)):
        return
    for path in _paths(code).get(name, ()):
        yield from filter(None, _of_path(value, path, code))


def of_names(code: types.CodeType) -> Iterator[str]:
    """Yield what code with these names reads that no digest reaches."""
    for one in codes_in(code):
        if "__globals__" in one.co_names:
            yield "code that reads all that stands in a module"
        if "getLogger" in one.co_names and not _OF_LOGGERS.isdisjoint(one.co_names):
            yield "code that asks a logger by its name"


def of_modules(modules: Iterable[types.ModuleType], names: Iterable[str]) -> Iterator[str]:
    """Yield what code with these names may ask of modules that it reaches by no name of its own."""
    for one in modules:
        yield from filter(None, _of_escaped(one, tuple(names)))


def _of_path(value: Any, path: tuple[str, ...], code: types.CodeType) -> Iterator[str]:
    place = ""
    for number, attribute in enumerate(path):
        if isinstance(value, type) and is_library(value):
            yield _of_member(value, attribute)
            break
        if not isinstance(value, types.ModuleType):
            break
        if not known.is_library(value):
            return
        place = f"{value.__name__}.{attribute}"
        if attribute not in vars(value):
            yield _of_own_class(place, value, path[number:])
            return
        value = vars(value)[attribute]
    if isinstance(value, types.ModuleType):
        yield from _of_escaped(value, (*names_in(code), *texts_in(code)))
    else:
        yield _of_object(place, value)


def _of_own_class(place: str, module: types.ModuleType, path: tuple[str, ...]) -> str:
    """Return what code asks of a module of a class of torch's: which settings or operators there are."""
    if type(module).__name__ in ("_Ops", "_OpNamespace"):
        return "" if len(path) > (type(module).__name__ == "_Ops") else place
    function = getattr(type(module), path[0], None)
    asks = (
        isinstance(function, types.FunctionType) and path[0] != "patch" and not _takes_argument(function, 1)
    )
    return place if asks else ""


def _of_escaped(module: types.ModuleType, names: tuple[str, ...]) -> Iterator[str]:
    """Yield what code may ask of a module that it keeps under another name, or hands on."""
    if not known.is_library(module):
        return
    for place, value in reached(module, names, lambda one, name: vars(one).get(name, NOTHING)):
        is_asked = value is not None and not isinstance(value, types.ModuleType)
        if is_asked and not place.rpartition(".")[2].startswith("__"):
            yield _of_object(place, value)


def _of_object(place: str, value: Any) -> str:
    module, _, name = place.rpartition(".")
    value = without_wrapper(value)
    if asked.is_compared(place):
        return ""
    if getattr(type(value), "__name__", "") == "_ArrayFunctionDispatcher":
        return place if name in NUMPY_ASKS else ""
    if isinstance(value, (type, types.MethodType, *KINDS)):
        holder = None if isinstance(value, type) else getattr(value, "__self__", None)
        is_bound = not isinstance(holder, (type, types.NoneType)) and known.owner_of(value) is holder
        return place if is_bound else of_value(value)
    is_listed = module.startswith(TORCH_MODULES) or asked.is_told(name, value)
    return "" if is_listed or place in asked.OF_PROCESS or _is_constant(value) else place


def _is_constant(value: Any) -> bool:
    """Return whether an object of a library never changes: an operator, a class, a value with a text."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    is_of_typing = type(value).__module__ in ("typing", "typing_extensions", "collections.abc", "__future__")
    if is_of_typing or isinstance(value, (str, type, enum.Enum, types.FunctionType)) or operator_name(value):
        return True
    return not is_tensor(value) and describe_plain(value) is not None


def _of_member(cls: type, name: str) -> str:
    """Return what a function of a library's class is that code calls without an object."""
    if name == "__subclasses__" or name in NOT_OPERATORS:
        return f"{type_name(cls)}.{name}"
    for one in cls.__mro__:
        member = vars(one).get(name)
        if isinstance(member, (classmethod, staticmethod)) and isinstance(
            member.__func__, types.FunctionType
        ):
            if not str(cls.__module__).startswith("torch"):
                return ""
            takes = _takes_argument(member.__func__, 1 if isinstance(member, classmethod) else 0)
            return "" if takes else f"{type_name(cls)}.{name}"
        if member is not None:
            break
    return ""


def _of_class(cls: type) -> str:
    module = str(cls.__module__)
    top, place = _top(module), f"{module.lstrip('_')}.{cls.__name__}"
    if top == "numpy":
        return place if cls.__name__ in NUMPY_ASKS or module.startswith("numpy.random") else ""
    is_value = top == "torch" or top in MODULES or issubclass(cls, (BaseException, enum.Enum))
    return "" if is_value or place in FUNCTIONS or not known.is_own_module(module) else place


def _of_function(place: str, function: types.FunctionType) -> str:
    is_inner = "<locals>" in place or not stands_at_home(function)
    if is_inner or not known.is_known(function.__code__):
        return ""
    module = str(function.__globals__.get("__name__"))
    top = _top(module)
    if top == "torch":
        names = [f"{'.'.join(module.split('.')[:depth])}.{function.__name__}" for depth in (1, 2)]
        is_known = place in TORCH_FUNCTIONS or not TORCH_FUNCTIONS.isdisjoint(names)
        is_known |= module.startswith(TORCH_MODULES)
        parts = tuple(f"{one}." for one in TORCH_WITH_ARGUMENT)
        is_of = module == "torch" or f"{module}.".startswith(parts)
        return "" if is_known or (is_of and _takes_argument(function, 0)) else place
    if top == "numpy":
        return "" if function.__name__ in NUMPY_FUNCTIONS else place
    return "" if top in MODULES or place in FUNCTIONS else place


def _of_c_function(place: str, function: Callable[..., Any]) -> str:
    holder, name = getattr(function, "__self__", None), function.__name__
    if not isinstance(holder, (type, types.NoneType)) and known.owner_of(function) is not None:
        module = str(type(holder).__module__)
        return f"{module}.{name}" if module in ("random", "_random") else ""
    module = place.rpartition(".")[0]
    top = _top(module)
    if top == "torch":
        is_operator = not isinstance(holder, types.ModuleType) and module == "torch"
        if is_operator or module.rpartition(".")[2] in TORCH_OPERATORS:
            return place if name in NOT_OPERATORS else ""
        is_known = place in TORCH_FUNCTIONS or name.lstrip("_").startswith(TORCH_ACTIONS)
        return "" if is_known or "_functorch" in module else place
    if top == "numpy":
        return place if name in NUMPY_ASKS else ""
    place = place.lstrip("_").replace("posix.", "os.", 1)
    if module == "builtins":
        return name if name in _RUNS_TEXT else ""
    return "" if top in MODULES or place in FUNCTIONS or not known.is_own_module(module) else place


def _top(module: str) -> str:
    top = module.partition(".")[0]
    return top if top in MODULES else top.lstrip("_")


def _takes_argument(function: types.FunctionType, given: int) -> bool:
    """Return whether a function has to be called with an argument beside those that Python passes."""
    code = function.__code__
    needed = code.co_argcount - len(function.__defaults__ or ()) - given
    needed += code.co_kwonlyargcount - len(function.__kwdefaults__ or {})
    return needed > 0 or bool(code.co_flags & inspect.CO_VARARGS)


def _kept_under(module: str, code: types.CodeType) -> str:
    """Return the name to which code assigns the package of a module that it imports; an empty text where it
    does anything else with the module."""
    steps = [step for one in codes_in(code) for step in dis.get_instructions(one)]
    after = [two for one, two in pairwise(steps) if (one.opname, one.argval) == ("IMPORT_NAME", module)]
    names = {one.argval if one.opname.startswith("STORE_") else "" for one in after}
    return str(names.pop()) if len(names) == 1 else ""


@functools.lru_cache(maxsize=4096)
def _paths(code: types.CodeType) -> dict[str, set[tuple[str, ...]]]:
    """Return, for each name that code loads, the attributes that it reads of that, one after the other."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for one in codes_in(code):
        steps = list(dis.get_instructions(one))
        for number, step in enumerate(steps):
            if "LOAD_" not in step.opname or "ATTR" in step.opname:
                continue
            loaded = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            read = takewhile(lambda after: after.opname in ("LOAD_ATTR", "LOAD_METHOD"), steps[number + 1 :])
            path = tuple(after.argval for after in read)
            for name in (one for one in loaded if isinstance(one, str)):
                found.setdefault(name, set()).add(path if loaded[-1] == name else ())
    return found
