"""Digests the code of functions with everything that they call and read; equal code has one digest in every
process.

A digest covers the code and its constants, what the code reads of its module and of the functions around it,
and what all of that reads in turn: functions in containers, methods of objects, what wrappers wrap. It covers
no places or names of files, comments, line numbers or annotations. Code of PyTorch, Triton, the standard
library and of what torch is built on is not followed but named, since their versions are in every key, and
`released` finds what a program changed in torch. Of an object of an application a digest covers the class and
the attributes that any of the code names. Values are as they are when the digest is made.

A value of a kind that is not known makes the digest *unknown*, with a reason that names it: never is
something
omitted. This module calls, imports and parses nothing of an application's, and never raises.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import enum
import functools
import os
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import stock
from .values import describe_plain, short, type_name

__all__ = ["MAX_FOLLOWED", "FollowedCode", "short"]

MAX_FOLLOWED = 2000
"""Functions, classes and objects that are followed, at most: code may call into a large library."""
_DEEPEST = 20
"""How many containers deep values are digested."""
_MOST_ITEMS = 100_000
"""Items of all containers that a digest covers, at most."""
_NOT_OF_CODE = frozenset(
    (
        "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__",
        "__annotations__",
        "__static_attributes__", "__abstractmethods__", "__annotations_cache__", "__annotate__",
        "__annotate_func__",
        "__match_args__", "__parameters__", "__orig_bases__", "__slots__", "__type_params__",
    )
)  # fmt: skip
"""Attributes of every class that decide nothing that the others do not."""
_RUNS_TEXT = frozenset(("exec", "eval", "compile", "open", "input", "globals", "__import__"))
"""Built-in functions by which code depends on what no digest reaches."""
_ALL_ATTRIBUTES = frozenset(
    ("vars", "__dict__", "dir", "getattr", "asdict", "astuple", "fields", "copy", "deepcopy")
)
"""Names with which code reads attributes of an object that it does not name."""
_ENVIRONMENT = frozenset(("environ", "getenv", "environb"))
"""Names with which code reads variables of the environment."""


_MOST = 1000
"""Functions, classes and objects that are followed, at most: a function may reach a large library."""


class FollowedCode:
    """Follows everything that some functions, classes and objects call or read.

    Attributes:
        lines: The code and the values, as text.
        anything: Whether the application has any of the code.
        kernels: The Triton kernels among the code, with the digests of their own sources and constants.
        unknown: What has no description, in words; empty if there is nothing.
    """

    def __init__(self, roots: Iterable[Any], named: Mapping[str, Sequence[Any]] | None = None) -> None:
        """``roots``: the functions and classes to begin with. ``named``: the functions behind names that are
        no values in Python, such as the names of operators."""
        self._named = named or {}
        self.lines: list[str] = []
        self.kernels: dict[str, str] = {}
        self.anything = False
        self.unknown = ""
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # referenced, so that no address is used again
        self._waiting: deque[Any] = deque()
        self._objects: list[tuple[Any, set[str]]] = []
        self._names: set[str] = set()
        self._constants: set[str] = set()
        self._items = 0
        try:
            for root in roots:
                self.lines.append(self._text(root))
            self._follow_all()
        except Exception as error:  # noqa: BLE001 - an object that answers in an odd way
            self._doubt(f"an object that cannot be read ({type(error).__name__})")

    @property
    def digest(self) -> str:
        """Return twelve letters of the digest of all lines."""
        return short("\n".join(self.lines))

    def digest_without(self, name: str) -> str:
        """Return the digest of all lines without the name of an operator, as torch writes it there."""
        return short("\n".join(self.lines).replace(name, "").replace(name.replace("::", "_"), ""))

    def _doubt(self, what: str) -> str:
        self.unknown = self.unknown or what
        return f"unknown: {what}"

    def _follow_all(self) -> None:
        """Follow what waits. Once something is unknown the rest decides nothing."""
        while not self.unknown:
            while self._waiting and not self.unknown:
                value = self._waiting.popleft()
                (self._class if isinstance(value, type) else self._function)(value)
                if len(self._numbers) > _MOST:
                    self._doubt(f"more than {_MOST} functions, classes and objects")
            if self.unknown or not self._read_attributes():
                break
        if self._names & _ENVIRONMENT:
            found = sorted(name for name in self._constants if name in os.environ)
            self.lines += [f"environment {name}={os.environ[name]}" for name in found]

    def _read_attributes(self) -> bool:
        """Add the attributes of objects that code names by now; return whether there were any."""
        found = False
        for value, done in list(self._objects):
            found |= self._attributes(value, done)
            if self.unknown:
                break
        return found

    # Values ----------------------------------------------------------------------------------

    def _text(self, value: Any, depth: int = 0) -> str:
        """Return a value's text, and have the code in it followed."""
        try:
            plain = describe_plain(value)
        except ValueError as error:
            return self._doubt(str(error))
        if plain is not None:
            return plain
        if depth > _DEEPEST:
            return self._doubt(f"values that lie more than {_DEEPEST} containers deep")
        if isinstance(value, types.ModuleType):
            return (
                self._object(value) if not _is_library_module(value.__name__) else f"module {value.__name__}"
            )
        if isinstance(value, enum.Enum):
            return f"{self._text(type(value), depth)} {value._name_} {self._text(value._value_, depth + 1)}"
        if isinstance(value, type):
            return self._type(value)
        if (number := self._numbers.get(id(value))) is not None:
            return f"seen {number}"
        if stock.is_c_function(value):
            return self._c_function(value, depth)
        operator = _operator_name(value)
        if operator:
            for one in self._named.get(operator.partition("::")[2].partition(".")[0], ()):
                self._text(one)
            return f"operator {operator}"
        number = self._number(value)
        if _is_kernel(value):
            self._kernel(value)
            return f"kernel {number}"
        if isinstance(value, types.FunctionType):
            return self._function_text(value, number)
        if (container := self._container(value, depth)) is not None:
            return container
        if (inner := _wrapped(value)) is not None:
            return f"{type_name(type(value))} of {[self._text(one, depth + 1) for one in inner]}"
        return self._object(value)

    def _number(self, value: Any) -> int:
        """Return the number of a value, by which it is named when it is reached again."""
        if len(self._numbers) >= MAX_FOLLOWED * 20:
            self._doubt("more objects than a digest covers")
        self._kept.append(value)
        return self._numbers.setdefault(id(value), len(self._numbers))

    def _function_text(self, function: types.FunctionType, number: int) -> str:
        if stock.is_known(function.__code__):
            if not _stands_at_home(function):
                for name, value in _cells(function).items():
                    self.lines.append(f"{name} around {number}: {self._text(value, 1)}")
                self.lines.append(f"defaults {number}: {self._text(function.__defaults__, 1)}")
            file = os.path.basename(function.__code__.co_filename)
            return f"{file} {stock.name_of(function)} {function.__code__.co_firstlineno}"
        if len(self._waiting) >= MAX_FOLLOWED:
            return self._doubt(f"more than {MAX_FOLLOWED} functions")
        self._waiting.append(function)
        return f"function {number}"

    def _type(self, value: type) -> str:
        if is_library(value):
            return f"class {type_name(value)}"
        if (number := self._numbers.get(id(value))) is None:
            number = self._number(value)
            self._waiting.append(value)
        return f"class {number}"

    def _c_function(self, value: Any, depth: int) -> str:
        holder = getattr(value, "__self__", None)
        if (
            holder is not None
            and not isinstance(holder, (types.ModuleType, type))
            and "pybind" not in type(holder).__module__
        ):
            return f"{value.__name__} of {self._text(holder, depth + 1)}"
        owner = getattr(value, "__objclass__", None) or (holder if isinstance(holder, type) else None)
        module = str(getattr(value, "__module__", None) or getattr(owner, "__module__", None) or "")
        module = module or (holder.__name__ if isinstance(holder, types.ModuleType) else "builtins")
        if not (_is_library_module(module) or stock.is_own_module(module)):
            if owner is not None and not is_library(owner):
                return f"slot {getattr(value, '__name__', '')}"
            return self._doubt(f"the C function {module}.{getattr(value, '__name__', '')}")
        return f"C {module}.{getattr(value, '__qualname__', value)}"

    def _container(self, value: Any, depth: int) -> str | None:
        """Return the text of a container; of one of a class of the application, its class and attributes
        too. The methods of the base classes read it: a subclass could run its own code."""
        base = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
        if base is None:
            return None
        self._items += base.__len__(value)
        if self._items > _MOST_ITEMS:
            return self._doubt(f"containers of more than {_MOST_ITEMS} items")
        if type(value) is not base and not is_library(type(value)):
            self._object(value)
        name = self._text(type(value), depth) if type(value) is not base else base.__name__
        if base in (dict, types.MappingProxyType):
            # The order of an ordered dict is its own: `dict.items` does not see `move_to_end`.
            ordered = OrderedDict if isinstance(value, OrderedDict) else base
            items = list(ordered.items(value))
            return (
                f"{name} {[(self._text(key, depth + 1), self._text(item, depth + 1)) for key, item in items]}"
            )
        texts = [self._text(item, depth + 1) for item in list(base.__iter__(value))]
        return f"{name} {sorted(texts) if base in (set, frozenset) else texts}"

    # Objects ---------------------------------------------------------------------------------

    def _object(self, value: Any) -> str:
        """Return the text of another object. Its attributes are read once all code is known that names
        them."""
        if (number := self._numbers.get(id(value))) is None or not any(
            value is one for one, _ in self._objects
        ):
            number = self._number(value)
            self._objects.append((value, set()))
        if isinstance(value, types.ModuleType):
            return f"module {number}"
        return f"object {number} of {self._text(type(value))}"

    def _attributes(self, value: Any, done: set[str]) -> bool:
        """Add the attributes of an object that code names and that are not added yet; return whether there
        were any."""
        names = self._names - done
        if self._names & _ALL_ATTRIBUTES or _has_code_of_library(value):
            names |= set(_own_attributes(value)) - done
        if not names:
            return False
        done |= names
        number, found = self._numbers[id(value)], False
        for name in sorted(names):
            for item in _attribute(value, name):
                self.lines.append(f"{number}.{name}: {self._text(item, 1)}")
                found = True
        if not found and not isinstance(value, (types.ModuleType, type)) and not _has_attributes(value):
            self._doubt(f"an object of the type {type_name(type(value))}")
        return bool(names)

    def _class(self, cls: type) -> None:
        """Add a class of the application: its bases, its functions, and its other attributes by name."""
        number = self._numbers[id(cls)]
        self.anything = True
        self.lines.append(
            f"class {number} of {self._text(type(cls))}: {[self._text(base) for base in cls.__bases__]}"
        )
        names = type.__getattribute__(cls, "__dict__")
        for name, value in list(names.items()):
            if name in _NOT_OF_CODE or name == "_abc_impl":
                continue
            if _is_code(value) or name in (
                "__dataclass_fields__",
                "_fields",
                "_field_defaults",
                "_member_map_",
            ):
                self.lines.append(f"{number} has {name}: {self._text(value, 1)}")
        if "_abc_impl" in names:
            self.lines.append(f"{number} registers {sorted(_registered(cls))}")
        self._objects.append((cls, set(_NOT_OF_CODE)))

    # Code ------------------------------------------------------------------------------------

    def _kernel(self, value: Any) -> None:
        """Add a Triton kernel, plain or under ``triton.autotune`` or ``triton.heuristics``."""
        self.anything, function = True, value.fn
        if not isinstance(source := getattr(value, "src", None), str):
            self._text(function)
            configurations = sorted(str(one) for one in getattr(value, "configs", None) or ())
            self.lines += [line for line in configurations if " at 0x" not in line]
            return
        self.lines.append(source)
        constants = ""
        if isinstance(function, types.FunctionType):
            read = dict(_read(function, _names(function.__code__)))
            plain = {name: _constant_value(one) for name, one in read.items()}
            constants = "\n".join(f"{name}={one!r}" for name, one in plain.items() if type(one) in _NUMBERS)
            self.lines.append(constants)
            for one in read.values():
                if _is_kernel(one):
                    self._text(one)
        self.kernels[str(getattr(function, "__name__", "kernel"))] = short(f"{source}\n{constants}")

    def _function(self, function: types.FunctionType) -> None:
        number, code = self._numbers[id(function)], function.__code__
        self.anything = True
        self.lines += [f"function {number}", *self._code(code)]
        self.lines.append(
            f"defaults {self._text(function.__defaults__, 1)} {self._text(function.__kwdefaults__, 1)}"
        )
        names = _names(code)
        self._names.update(names)
        for name in names:
            for one in self._named.get(name, ()):
                self.lines.append(f"operator {name}: {self._text(one)}")
        for name, value in _read(function, names):
            self.lines.append(f"{name}: {self._text(value, 1)}")
            if name in _RUNS_TEXT and getattr(builtins, name, None) is value:
                self._doubt(f"code that calls {name}")
        for name, value in sorted(vars(function).items()):
            if name != "__wrapped__" or isinstance(value, types.FunctionType):
                self.lines.append(f"{number}.{name}: {self._text(value, 1)}")

    def _code(self, code: types.CodeType) -> Iterator[str]:
        arguments = f"{code.co_argcount} {code.co_kwonlyargcount} {code.co_flags}"
        yield f"{arguments} {code.co_names} {code.co_code.hex()}"
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from self._code(constant)
            else:
                if isinstance(constant, str):
                    self._constants.add(constant)
                    if constant.isidentifier():
                        self._names.add(constant)
                yield self._text(constant)


_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, types.MappingProxyType)


def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names in code and in the functions inside of it, each once."""
    nested = (name for one in code.co_consts if isinstance(one, types.CodeType) for name in _names(one))
    return tuple(dict.fromkeys((*code.co_names, *nested)))


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of the functions around a function, as far as they are set."""
    variables = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            variables[name] = cell.cell_contents
    return variables


def _read(function: types.FunctionType, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield what a function reads outside of itself, by name."""
    cells = _cells(function)
    for name in dict.fromkeys((*cells, *names)):
        if name in cells:
            yield name, cells[name]
        elif name in function.__globals__:
            yield name, function.__globals__[name]
        elif hasattr(builtins, name):
            yield name, getattr(builtins, name)


def _constant_value(value: Any) -> Any:
    return getattr(value, "value", None) if type(value).__module__.startswith("triton.") else value


def _registered(cls: type) -> Iterator[str]:
    """Yield the classes that a program registered with an abstract class."""
    import _abc  # type: ignore[import-not-found]

    for reference in _abc._get_dump(cls)[0]:
        if (one := reference()) is not None:
            yield type_name(one)


def _is_code(value: Any) -> bool:
    return (
        callable(value)
        or isinstance(value, (classmethod, staticmethod, property))
        or hasattr(type(value), "__get__")
    )


def _wrapped(value: Any) -> list[Any] | None:
    """Return what a wrapper of code holds; ``None`` for an object that is no such wrapper."""
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (classmethod, staticmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return [value.func, value.args, value.keywords, dict(vars(value))]
    if type(value).__module__ == "functools" and hasattr(value, "__wrapped__"):
        return [value.__wrapped__]
    if isinstance(value, functools.cached_property):
        return [value.func]
    if isinstance(value, weakref.ref):
        return [weakref.ref.__call__(value)]
    if isinstance(value, dataclasses.Field):
        return [getattr(value, name) for name in _OF_FIELDS]
    return None


_OF_FIELDS = ("name", "default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only")
"""What a field of a dataclass decides; its type is an annotation."""


def _has_code_of_library(value: Any) -> bool:
    """Return whether code that is not followed may read any attribute of an object."""
    is_holder = isinstance(value, (types.ModuleType, type)) or type(value) is types.SimpleNamespace
    return not is_holder and is_library(type(value))


def _own_attributes(value: Any) -> Iterator[str]:
    """Yield the names of the attributes that an object has by itself."""
    if isinstance(value, (types.ModuleType, type)):
        return
    with contextlib.suppress(AttributeError):
        yield from object.__getattribute__(value, "__dict__")
    for holder in type(value).__mro__:
        slots = vars(holder).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _has_attributes(value: Any) -> bool:
    try:
        object.__getattribute__(value, "__dict__")
    except AttributeError:
        return any("__slots__" in vars(holder) for holder in type(value).__mro__)
    return True


def _attribute(value: Any, name: str) -> list[Any]:
    """Return an attribute of an object without calling anything; an empty list if there is none."""
    if isinstance(value, types.ModuleType):
        return [vars(value)[name]] if name in vars(value) else []
    classes = value.__mro__ if isinstance(value, type) else (value, *type(value).__mro__)
    for holder in classes:
        if isinstance(holder, type) and is_library(holder):
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


def _operator_name(value: Any) -> str:
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


def _is_kernel(value: Any) -> bool:
    """Return whether a value is a Triton kernel of the application, or the object that tunes one."""
    return (
        type(value).__module__.startswith("triton.") and hasattr(value, "fn") and not _is_of_triton(value.fn)
    )


def _is_of_triton(function: Any) -> bool:
    return _is_library_module(str(getattr(function, "__module__", None) or "builtins"))


def _stands_at_home(function: types.FunctionType) -> bool:
    """Return whether a function of a library stands under its name in its module: its text says all of it."""
    home = sys.modules.get(str(function.__globals__.get("__name__")))
    return function.__closure__ is None or getattr(home, function.__code__.co_name, None) is function


def is_library(cls: type) -> bool:
    """Return whether a class is of torch, of the standard library or of what torch is built on: it stands
    there
    under its name, or has no code of its own."""
    module = str(cls.__module__)
    if not (_is_library_module(module) or stock.is_own_module(module)):
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
    return bool(function.__closure__) or not stock.is_known(function.__code__)


def _is_library_module(module: str) -> bool:
    return stock.is_own_module(module)
