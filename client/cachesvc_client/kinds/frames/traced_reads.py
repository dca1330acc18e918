"""Records what a trace reads and no guard of Dynamo's compares, and compares it in a service.

Dynamo turns some answers of functions into constants: of builtins, of functions of the interpreter for which
it has a substitute, of getters of torch. It also reads variables of the environment without a guard for those
that are not set. Here each such read is recorded with what it answered. A read that cannot be repeated in
another process makes a frame that is not recorded. Read in torch 2.11 to 2.15.

Besides, each name by which the traced code reaches a function or a class is recorded with what it resolves
to, also where the trace failed inside of that function.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from ...graphs.constants import PLAIN
from ...hooks import imports
from ...hooks.table import Hook
from .describe import describe
from .guard_pickles import named
from .names import (
    ABSENT_KEY,
    ATTRIBUTE,
    ATTRIBUTE_BY_SLOT,
    BUILTIN,
    CONSTANT,
    CONSTANT_METHOD,
    FOLDED,
    HAS_ATTRIBUTE,
    INLINE,
    POLYFILL,
    SKIPPED,
)
from .stored import Read, Reads

_PURE = frozenset({
    *("abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "classmethod"),
    *("complex", "delattr", "dict", "dir", "divmod", "enumerate", "filter", "float", "format"),
    *("frozenset", "getattr", "hasattr", "hex", "int", "isinstance", "issubclass", "iter", "len", "list"),
    *("map", "max", "min", "next", "object", "oct", "ord", "pow", "print", "property", "range", "repr"),
    *("reversed", "round", "set", "setattr", "slice", "sorted", "staticmethod", "str", "sum", "super"),
    *("tuple", "type", "vars", "zip"),
})  # fmt: skip
"""Builtins whose answer follows from their arguments, which have guards."""
_PURE_MODULES = frozenset({
    *("operator", "_operator", "math", "itertools", "functools", "_functools", "typing", "copy", "heapq"),
    *("_heapq", "struct", "_struct", "collections", "_collections", "traceback", "types"),
})  # fmt: skip
"""Modules whose functions answer by their arguments alone."""
_IMPURE_METHODS = ("__hash__", "__sizeof__", "__repr__", "__reduce__", "__reduce_ex__")
"""Methods of builtin classes whose answer is another one in each process."""
_NUMBERS = (int, float, bool, complex)
_GETTERS = ("get_", "is_", "current_", "_get_", "_is_", "getrecursionlimit", "hash", "intern")
"""How the names of functions begin that a service may call to compare their answer."""
_ENVIRONMENT = frozenset({"getenv", "__getitem__", "encodekey", "encode", "decode", "check_str"})
"""Functions of the module ``os`` by which a program reads one variable of the environment."""
_PURE_OF_OS = frozenset({"fspath", "_fspath", "fsencode", "fsdecode"})
_ADDRESS = " at 0x"
_NOTHING = "nothing"
"""The words for a name that a module does not have."""
_UNKNOWN = object()


class TracedReads:
    """Collects what one trace reads.

    Attributes:
        codes: The code that the trace went into, also where it failed there.
        names: ``module:name`` -> what the name resolves to, in words.
        environment: Variables of the environment -> the digests of their values.
        answers: Calls -> their answers, as text.
        instances: Pairs of classes -> whether the first is a subclass of the second.
        refused: Why the frame cannot be recorded; empty if it can.
    """

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, None] = {}
        self.names: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.answers: dict[Read, str] = {}
        self.instances: dict[tuple[str, str], bool] = {}
        self.refused = ""

    def recorded(self) -> Reads:
        """Return what a record holds of the reads."""
        return Reads(self.names, self.environment, self.answers, self.instances)

    def refuse(self, why: str) -> None:
        """Note why the frame cannot be recorded, the first reason alone."""
        self.refused = self.refused or why

    def note_code(self, code: types.CodeType, scope: Mapping[str, Any]) -> None:
        """Record code that the trace goes into. ``scope``: the globals of its function."""
        if code not in self.codes:
            self.codes[code] = None
            if not _is_of_torch(scope):
                self.names |= _resolved(code, scope)

    def note_locals(self, code: types.CodeType, values: Mapping[str, Any]) -> None:
        """Record which variable of the environment a function of ``os`` reads. ``values``: its arguments, as
        Dynamo has them."""
        if code.co_filename not in ("<frozen os>", os.__file__) or code.co_name in _PURE_OF_OS:
            return
        if code.co_name not in _ENVIRONMENT:
            self.refuse(f"it reads the process through os.{code.co_name}")
        elif code.co_name == "__getitem__":
            key = _constant(values.get("key"))
            if isinstance(key, str):
                self.environment[key] = _variable(key)
            else:
                self.refuse("it reads a variable of the environment whose name is not known")

    def note_answer(self, function: Any, arguments: Any, named_arguments: Any, answer: Any) -> None:
        """Record what a function answered, where Dynamo makes a constant of that.

        ``arguments``, ``named_arguments`` and ``answer`` are Dynamo's variables.
        """
        value = _constant(answer)
        if value is _UNKNOWN:
            return
        name = _name(function)
        given = tuple(map(_constant, arguments))
        if named_arguments or not all(value is None or type(value) in PLAIN for value in given):
            self.refuse(f"the answer of {name} becomes a constant, and cannot be compared")
            return
        try:
            read = Read(function.__module__, function.__qualname__, given)
            if not read.name.startswith(_GETTERS) or named(read.module, read.name) is not function:
                raise LookupError
            self.answers[read] = _answer(value)
        except (AttributeError, LookupError, TypeError):
            self.refuse(f"the answer of {name} becomes a constant, and cannot be compared")

    def note_skipped(self, function: Any, arguments: Any, named_arguments: Any, answer: Any) -> None:
        """Record the answer of a function that Dynamo called during the trace instead of tracing it. Since
        torch 2.13 it does so with `importlib.util.find_spec` and `importlib.metadata.version`."""
        import importlib.metadata

        value, given = _constant(answer), tuple(map(_constant, arguments))
        if function in (importlib.util.find_spec, importlib.metadata.version) and not named_arguments:
            # A name with a dot would import the package that it begins with.
            if all(type(one) is str and "." not in one for one in given):
                read = Read(function.__module__, function.__qualname__, given)
                self.answers[read] = _answer(function(*given))
                return
        elif getattr(function, "__module__", "") == re.__name__ or value is None or value is _UNKNOWN:
            return
        self.refuse(f"the answer of {_name(function)} becomes a constant, and cannot be compared")

    def note_instance(self, variable: Any, classes: Any, *, of_class: bool) -> None:
        """Record whether an object is of a class that decides that by itself, such as an abstract one.

        ``variable`` and ``classes`` are Dynamo's variables; ``of_class``: the first is a class itself.
        """
        try:
            kind = _constant(variable) if of_class else variable.python_type()
            asked = _constant(classes)
        except Exception:  # noqa: BLE001 - a variable of Dynamo's without a type
            kind = asked = _UNKNOWN
        if asked is _UNKNOWN or not isinstance(kind, type):
            return  # Dynamo made no constant of the answer
        for one in asked if isinstance(asked, tuple) else (asked,):
            if _is_decided_by_program(one):
                self.refuse(f"code of the program decides what is a {one.__qualname__}")
            elif _decides_by_itself(one):
                try:
                    self.instances[_place(kind), _place(one)] = issubclass(kind, one)
                except TypeError as error:
                    self.refuse(f"whether an object is a {one.__qualname__} cannot be compared: {error}")


class ReadsHooks:
    """Fills the reads of the trace that runs now."""

    def __init__(self) -> None:
        self._now: list[TracedReads] = []
        self.missing = ""
        """The hook that is not there; empty if all are. Without one a frame cannot be recorded."""

    def install(self) -> None:
        """Put the hooks in place, which only a recording needs."""
        for hook, body in (
            (INLINE, self._inline),
            (BUILTIN, self._builtin),
            (POLYFILL, self._polyfill),
            (FOLDED, self._folded),
            (SKIPPED, self._skipped),
            (CONSTANT, self._constant_result),
            (CONSTANT_METHOD, self._constant_method),
            (ABSENT_KEY, self._absent_key),
            (HAS_ATTRIBUTE, self._attribute),
            (ATTRIBUTE, self._attribute),
            (ATTRIBUTE_BY_SLOT, self._attribute),
        ):
            hook.install(body, on_missing=self._note_missing)

    def begin(self, code: types.CodeType, scope: Mapping[str, Any]) -> TracedReads:
        """Return the reads of a trace that begins. ``code``, ``scope``: the function's, and its globals."""
        reads = TracedReads()
        if self.missing:
            reads.refuse(f"this torch has no {self.missing}")
        reads.note_code(code, scope)
        self._now.append(reads)
        return reads

    def end(self) -> None:
        """Forget the trace that began last."""
        self._now.pop()

    def _note_missing(self, hook: Hook) -> None:
        import torch

        if hook.expected_in(torch.__version__):
            self.missing = hook.name

    def _inline(self, call: imports.Call) -> Any:
        if self._now:
            reads, code = self._now[-1], call.argument("code")
            reads.note_code(code, call.argument("funcvar").get_globals())
            reads.note_locals(code, call.argument("symbolic_locals"))
        return call()

    def _builtin(self, call: imports.Call) -> Any:
        answer = call()
        if self._now:
            function = call.args[0].fn
            self._note_builtin(call.args[1], function, call.args[2], call.args[3], answer)
        return answer

    def _note_builtin(
        self, translator: Any, function: Any, arguments: Any, named_arguments: Any, answer: Any
    ) -> None:
        value, reads = _constant(answer), self._now[-1]
        if isinstance(value, str) and _ADDRESS in value:
            reads.refuse("the address of an object becomes a constant")
        if function in (isinstance, issubclass) and len(arguments) == 2:
            reads.note_instance(*arguments, of_class=function is issubclass)
        if _is_pure(function):
            return
        if function is hash and all(type(_constant(one)) in _NUMBERS for one in arguments):
            return
        # The interpreter's own modules and torch tell objects apart by these numbers, and do nothing else.
        if function is not id or not _is_of_library(translator.f_globals):
            reads.note_answer(function, arguments, named_arguments, answer)

    def _polyfill(self, call: imports.Call) -> Any:
        answer = call()
        if self._now:
            function = call.args[0].fn
            if not _is_pure(function):
                self._now[-1].note_answer(function, call.args[2], call.args[3], answer)
        return answer

    def _skipped(self, call: imports.Call) -> Any:
        answer = call()
        if self._now:
            self._now[-1].note_skipped(call.args[0].value, call.args[2], call.args[3], answer)
        return answer

    def _folded(self, call: imports.Call) -> Any:
        answer = call()
        if self._now:
            function = call.args[0].value
            arguments = [_constant(one) for one in call.args[2]]
            is_getter = function in _folded_functions() and _UNKNOWN not in arguments
            if is_getter and getattr(function, "__module__", "") != "math":
                self._now[-1].note_answer(function, call.args[2], call.args[3], answer)
        return answer

    def _constant_result(self, call: imports.Call) -> Any:
        if self._now:
            self._now[-1].refuse(f"{call.argument('name')} is a function whose answer is taken as a constant")
        return call()

    def _constant_method(self, call: imports.Call) -> Any:
        if self._now and call.args[2] in _IMPURE_METHODS and call.args[2] != "__repr__":
            self._now[-1].refuse(f"it calls {call.args[2]} of a constant")
        return call()

    def _absent_key(self, call: imports.Call) -> Any:
        """Have Dynamo guard that a dictionary lacks a key, where a ``KeyError`` is its answer."""
        try:
            return call()
        except Exception:
            if self._now:
                variable, translator, key = call.args
                variable.install_dict_contains_guard(translator, [key])
            raise

    def _attribute(self, call: imports.Call) -> Any:
        if self._now:
            module, name = call.args[0].value, call.args[2]
            if not _is_of_torch(vars(module)):
                self._now[-1].names[f"{module.__name__}:{name}"] = _words_at(module, name)
        return call()


def changed_read(reads: Reads) -> str:
    """Return in words the first read of a record that is another one here; else an empty text."""
    for name, recorded in reads.environment.items():
        if _variable(name) != recorded:
            return f"the variable {name} of the environment has another value"
    for read, recorded in reads.answers.items():
        try:
            now = _answer(named(read.module, read.name)(*read.arguments))
        except Exception as error:  # noqa: BLE001 - a function that fails here, or is not there
            now = f"{type(error).__name__}"
        if now != recorded:
            return f"{read.module}.{read.name}() is {now}, and was {recorded}"
    for pair, is_one in reads.instances.items():
        kind, asked = (_at(place) for place in pair)
        if not isinstance(kind, type) or not isinstance(asked, type) or issubclass(kind, asked) != is_one:
            return f"{pair[0]} is another subclass of {pair[1]}"
    for place, recorded in reads.names.items():
        module, _, name = place.partition(":")
        if _words_at(sys.modules.get(module), name) != recorded:
            return f"{module}.{name} is another one"
    return ""


def _decides_by_itself(kind: Any) -> bool:
    """Return whether a class, and not its bases alone, says what is an instance of it."""
    check: Any = type(kind).__instancecheck__
    return check is not type.__instancecheck__


def _is_decided_by_program(kind: Any) -> bool:
    """Return whether code of a program says what is an instance of a class, and may read anything for that.

    Abstract classes are compared by their subclasses."""
    checks = (getattr(type(kind), name) for name in ("__instancecheck__", "__subclasscheck__"))
    packages = (str(getattr(check, "__module__", None) or "builtins").partition(".")[0] for check in checks)
    return any(one not in ("torch", *sys.stdlib_module_names) for one in packages)


def _place(kind: type) -> str:
    """Return ``module:name`` of a class. Raises ``TypeError`` for one that no module has."""
    place = f"{kind.__module__}:{kind.__qualname__}"
    if _at(place) is kind:
        return place
    for name, value in vars(types).items():  # the interpreter's own, such as that of generators
        if value is kind:
            return f"types:{name}"
    raise TypeError(f"no module has the class {kind.__module__}.{kind.__qualname__}")


def _at(place: str) -> Any:
    try:
        return named(*place.split(":", 1))
    except LookupError:
        return None


def _resolved(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``module:name`` and words for each function and class that the code may reach by a name."""
    names = dict.fromkeys(_names(code))
    module = str(scope.get("__name__", ""))
    for name in names:
        value = scope.get(name)
        if isinstance(value, types.ModuleType):
            for other in names:
                if words := _words(vars(value).get(other)):
                    yield f"{value.__name__}:{other}", words
        elif vars(sys.modules.get(module, types)).get(name) is value and (words := _words(value)):
            yield f"{module}:{name}", words


def _words_at(module: Any, name: str) -> str:
    """Return what a module has under a name, as `_words` does."""
    value = getattr(module, name, _UNKNOWN)
    return _NOTHING if value is _UNKNOWN else _words(value)


def _words(value: Any) -> str:
    """Return what a function or a class is; an empty text for other objects, which guards compare."""
    if not callable(value):
        return ""
    try:
        return describe(value)
    except TypeError:
        return f"an object of {type(value).__module__}.{type(value).__qualname__}"


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_pure(function: Any) -> bool:
    """Return whether the answer of a function in C, or of one for which Dynamo has a substitute, follows from
    its arguments."""
    if isinstance(function, type) or function is os.fspath:
        return True
    name = getattr(function, "__name__", "")
    if (kind := getattr(function, "__objclass__", None)) is not None:
        return kind.__module__ in ("builtins", "collections") and name not in _IMPURE_METHODS
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    if package == "builtins":
        return name in _PURE
    return package in _PURE_MODULES or package in ("torch", "optree")


def _is_of_torch(scope: Mapping[str, Any]) -> bool:
    return _package(scope) == "torch"


def _is_of_library(scope: Mapping[str, Any]) -> bool:
    return _package(scope) in ("torch", *sys.stdlib_module_names)


def _package(scope: Mapping[str, Any]) -> str:
    return str(scope.get("__name__", "")).partition(".")[0]


def _folded_functions() -> Mapping[Any, Any]:
    from torch._dynamo.variables import torch as variables

    functions: Mapping[Any, Any] = variables.constant_fold_functions
    return functions


def _constant(variable: Any) -> Any:
    """Return the constant that one of Dynamo's variables is; `_UNKNOWN` for another variable."""
    try:
        return variable.as_python_constant() if variable.is_python_constant() else _UNKNOWN
    except Exception:  # noqa: BLE001 - a variable of Dynamo's that is no constant after all
        return _UNKNOWN


def _answer(value: Any) -> str:
    """Return the answer of a function as a text. Raises ``TypeError`` for one that has none."""
    if isinstance(value, importlib.machinery.ModuleSpec):
        loader, places = type(value.loader).__qualname__, value.submodule_search_locations
        return f"{value.name} of {loader} at {value.origin}, {list(places or ())}"
    return describe(value)


def _name(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"


def _variable(name: str) -> str:
    """Return a digest of a variable of the environment: a bundle shows no values."""
    value = os.environ.get(name)
    return "absent" if value is None else hashlib.sha256(f"{name}={value}".encode()).hexdigest()[:16]
