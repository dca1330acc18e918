"""Records what a trace reads and no guard of Dynamo's compares, and compares it in a service.

Dynamo turns some answers of functions into constants: of builtins, of functions of the interpreter for which
it has a substitute, of getters of torch. It also reads variables of the environment without a guard for those
that are not set. Here each such read is recorded with what it answered. A read that cannot be repeated in
another process makes a frame that is not recorded. Read in torch 2.11 to 2.15.

Besides, each name by which the traced code reaches a function or a class is recorded with what it resolves
to, also where the trace failed inside of that function.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....graphs.code.constants import PLAIN
from ..describe.objects import named
from ..describe.reads import answer_text, is_without_words, value_at, variable_digest, words_at, words_of
from ..stored import Read, Reads

_GETTERS = ("get_", "is_", "current_", "_get_", "_is_", "getrecursionlimit", "hash", "intern")
"""How the names of functions begin that a service may call to compare their answer."""
_ENVIRONMENT = frozenset({"getenv", "__getitem__", "encodekey", "encode", "decode", "check_str"})
"""Functions of the module ``os`` by which a program reads one variable of the environment."""
_PURE_OF_OS = frozenset({"fspath", "_fspath", "fsencode", "fsdecode"})
_MODULES_OF_TYPES = ("types", "_collections_abc")
"""Modules with the interpreter's own classes, such as those of generators and of the items of a dict."""
_COPIED = frozenset({int, float, complex, str, bytes, tuple, frozenset})
"""Types of constants of which a process may have several equal objects."""
_PLACES = frozenset(
    ("co_filename", "co_firstlineno", "co_lines", "co_linetable", "co_lnotab", "co_positions")
)
"""Attributes of code that say where it stands, which no digest of code has."""
UNKNOWN = object()
"""Stands for what is no constant of a trace."""


class TracedReads:
    """Collects what one trace reads.

    Attributes:
        codes: The code that the trace went into, also where it failed there.
        names: ``module:name`` -> what the name resolves to, in words.
        environment: Variables of the environment -> the digests of their values.
        answers: Calls -> their answers, as text.
        instances: Pairs of classes -> whether the first is a subclass of the second.
        sets: Names in guards of the sets that the trace read as a whole, see `container_reads`.
        refused: Why the frame cannot be recorded; empty if it can.
    """

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, None] = {}
        self.names: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.answers: dict[Read, str] = {}
        self.instances: dict[tuple[str, str], bool] = {}
        self.sets: set[str] = set()
        self._left_out: dict[Any, None] = {}
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
            if not is_of_torch(scope):
                self.names |= _resolved(code, scope)
            if package_of(scope) not in ("torch", *sys.stdlib_module_names) and _PLACES & {*_names(code)}:
                self.refuse(f"{code.co_name} reads in which file and line code stands")

    def note_global(self, scope: Mapping[str, Any], name: str) -> None:
        """Record a global that a function of the interpreter's own modules reads."""
        module = str(scope.get("__name__", ""))
        if module.partition(".")[0] not in sys.stdlib_module_names or module == os.__name__:
            return  # `note_locals` has what functions of ``os`` read
        if words := words_at(sys.modules.get(module), name):
            self.names[f"{module}:{name}"] = words
        if is_without_words(scope[name]):
            self.refuse(f"it reads {module}.{name}, which nothing compares")

    def note_left_out(self, guard: Any) -> None:
        """Note a guard that Dynamo omits. ``None``: which one is not known."""
        if guard is None:
            self.refuse("Dynamo leaves out a guard in a way that is not known")
        else:
            self._left_out[guard] = None

    def unguarded(self, builder: Any) -> list[Any]:
        """Return the guards that Dynamo omits, but for globals of the interpreter's own modules, which
        `note_global` has. ``builder``: Dynamo's, which has the objects of sources."""
        return [guard for guard in self._left_out if not _is_of_interpreter(builder, guard)]

    def note_locals(self, code: types.CodeType, values: Mapping[str, Any]) -> None:
        """Record which variable of the environment a function of ``os`` reads. ``values``: its arguments, as
        Dynamo has them."""
        if code.co_filename not in ("<frozen os>", os.__file__) or code.co_name in _PURE_OF_OS:
            return
        if code.co_name not in _ENVIRONMENT:
            self.refuse(f"it reads the process through os.{code.co_name}")
        elif code.co_name == "__getitem__":
            key = constant_of(values.get("key"))
            if isinstance(key, str):
                self.environment[key] = variable_digest(key)
            else:
                self.refuse("it reads a variable of the environment whose name is not known")

    def note_answer(self, function: Any, arguments: Any, named_arguments: Any, answer: Any) -> None:
        """Record what a function answered, where Dynamo makes a constant of that.

        ``arguments``, ``named_arguments`` and ``answer`` are Dynamo's variables.
        """
        value = constant_of(answer)
        if value is UNKNOWN:
            return
        name = _name(function)
        given = tuple(map(constant_of, arguments))
        if named_arguments or not all(value is None or type(value) in PLAIN for value in given):
            self.refuse(f"the answer of {name} becomes a constant, and cannot be compared")
            return
        try:
            read = Read(function.__module__, function.__qualname__, given)
            if not read.name.startswith(_GETTERS) or named(read.module, read.name) is not function:
                raise LookupError
            self.answers[read] = answer_text(value)
        except (AttributeError, LookupError, TypeError):
            self.refuse(f"the answer of {name} becomes a constant, and cannot be compared")

    def note_skipped(self, function: Any, arguments: Any, named_arguments: Any, answer: Any) -> None:
        """Record the answer of a function that Dynamo called during the trace instead of tracing it. Since
        torch 2.13 it does so with `importlib.util.find_spec` and `importlib.metadata.version`."""
        import importlib.metadata

        value, given = constant_of(answer), tuple(map(constant_of, arguments))
        if function in (importlib.util.find_spec, importlib.metadata.version) and not named_arguments:
            # A name with a dot would import the package that it begins with.
            if all(type(one) is str and "." not in one for one in given):
                read = Read(function.__module__, function.__qualname__, given)
                self.answers[read] = answer_text(function(*given))
                return
        elif getattr(function, "__module__", "") == re.__name__ or value is None or value is UNKNOWN:
            return
        self.refuse(f"the answer of {_name(function)} becomes a constant, and cannot be compared")

    def note_identity(self, arguments: Sequence[Any]) -> None:
        """Refuse that it is a constant of the trace whether two equal values are one object. ``arguments``:
        Dynamo's variables on both sides of ``is``."""
        one, other = map(constant_of, arguments)
        if type(one) is type(other) in _COPIED and (one is other or one == other) and not _is_shared(one):
            self.refuse(f"whether two equal objects of {type(one).__name__} are one becomes a constant")

    def note_instance(self, variable: Any, classes: Any, *, of_class: bool) -> None:
        """Record whether an object is of a class that decides that by itself, such as an abstract one.

        ``variable`` and ``classes`` are Dynamo's variables; ``of_class``: the first is a class itself.
        """
        try:
            kind = constant_of(variable) if of_class else _type_of(variable)
            asked = constant_of(classes)
        except Exception:  # noqa: BLE001 - a variable of Dynamo's without a type
            kind = asked = UNKNOWN
        if asked is UNKNOWN or not isinstance(kind, type):
            return  # Dynamo made no constant of the answer
        for one in asked if isinstance(asked, tuple) else (asked,):
            if _is_decided_by_program(one):
                self.refuse(f"code of the program decides what is a {one.__qualname__}")
            elif _decides_by_itself(one):
                try:
                    self.instances[_place(kind), _place(one)] = issubclass(kind, one)
                except TypeError as error:
                    self.refuse(f"whether an object is a {one.__qualname__} cannot be compared: {error}")


def constant_of(variable: Any) -> Any:
    """Return the constant that one of Dynamo's variables is; `UNKNOWN` for another variable.

    What Dynamo has not made of a value yet it makes later, with its guards. When it does so decides the order
    of a graph's inputs, and so PyTorch's key: so nothing is made here, nor of what is in a list or a tuple.
    """
    with _nothing_made():
        try:
            return variable.as_python_constant() if variable.is_python_constant() else UNKNOWN
        except Exception:  # noqa: BLE001 - a variable of Dynamo's that is no constant after all
            return UNKNOWN


def _type_of(variable: Any) -> Any:
    from torch._dynamo.variables.lazy import LazyVariableTracker

    if issubclass(type(variable), LazyVariableTracker) and not variable.is_realized():
        return variable.peek_type()
    return variable.python_type()


@contextlib.contextmanager
def _nothing_made() -> Iterator[None]:
    """Have Dynamo make no variable; one that it would make is a constant, or raises ``LookupError``."""
    from torch._dynamo.variables import lazy

    kinds: list[Any] = [one for one in vars(lazy).values() if "realize" in getattr(one, "__dict__", ())]
    makers = [(kind, kind.realize) for kind in kinds if issubclass(kind, lazy.LazyVariableTracker)]
    try:
        for kind, _ in makers:
            kind.realize = _made
        yield
    finally:
        for kind, make in makers:
            kind.realize = make


def _made(variable: Any) -> Any:
    """Return what Dynamo has made of a value; for a plain value a constant without guards, to look at."""
    from torch._dynamo.variables import ConstantVariable

    if variable.is_realized():
        return variable.unwrap()
    value = variable.peek_value()
    if value is None or type(value) in PLAIN:
        return ConstantVariable.create(value)
    raise LookupError


def _is_of_interpreter(builder: Any, guard: Any) -> bool:
    """Return whether a guard is about a global of one of the interpreter's own modules, or what is in it."""
    source = guard.originating_source
    while (inner := getattr(source, "base", None)) is not None:
        if type(source).__name__ == "SkipGuardSource" and hasattr(inner, "base"):
            module = builder.get(inner.base)
            name = str(getattr(module, "__name__", "")) if isinstance(module, types.ModuleType) else ""
            return name.partition(".")[0] in sys.stdlib_module_names
        source = inner
    return False


def _is_shared(value: Any) -> bool:
    """Return whether CPython has one object for all equal values: small numbers, and up to one character."""
    return -5 <= value <= 256 if type(value) is int else isinstance(value, (str, bytes)) and len(value) < 2


def is_of_torch(scope: Mapping[str, Any]) -> bool:
    return package_of(scope) == "torch"


def package_of(scope: Mapping[str, Any]) -> str:
    return str(scope.get("__name__", "")).partition(".")[0]


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
    if value_at(place) is kind:
        return place
    for module in _MODULES_OF_TYPES:
        for name, value in vars(sys.modules[module]).items():
            if value is kind:
                return f"{module}:{name}"
    raise TypeError(f"no module has the class {kind.__module__}.{kind.__qualname__}")


def _resolved(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``module:name`` and words for each function and class that the code may reach by a name. Of a
    builtin: that the module has nothing of its name."""
    names = dict.fromkeys(_names(code))
    module = str(scope.get("__name__", ""))
    for name in names:
        value = scope.get(name)
        if name not in scope and name in vars(builtins):
            yield f"{module}:{name}", words_at(sys.modules.get(module), name)
        elif isinstance(value, types.ModuleType):
            for other in names:
                if words := words_of(vars(value).get(other)):
                    yield f"{value.__name__}:{other}", words
        elif vars(sys.modules.get(module, types)).get(name) is value and (words := words_of(value)):
            yield f"{module}:{name}", words


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _name(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
