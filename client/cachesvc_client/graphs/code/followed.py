"""Digests the code of functions with all that they call and read; equal code has one digest in every process.

A digest covers the code and its constants, what the code reads of its module and of the functions around it,
and what all of that reads in turn: functions in containers, methods of objects, what wrappers wrap. It covers
no places, stacks as text, comments, line numbers or annotations. Code of PyTorch, Triton, the standard
library and of what torch is built on is not followed but named: keys have the versions, `released` finds what
a program changed in torch, and `questions` what such code asks of the process. Of an object of an application
a digest covers the class and the attributes that any of the code names.

A value of a kind that is not known makes the digest *unknown*, with a reason that names it: nothing is
omitted. This module calls, imports and parses nothing of an application's, and never raises.
"""

from __future__ import annotations

import enum
import functools
import os
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..released import known
from . import asked, hash_seed, questions, reading, registries, values, variables
from .gathered import Gathered
from .instructions import makes_names
from .kernels import kernel_lines, read_by_kernel
from .library import (
    has_code_of_library,
    is_kernel,
    is_library,
    name_in_c,
    operator_name,
    remembers_a_call,
    stands_at_home,
    without_wrapper,
)
from .memos import kept_results
from .states import has_state

MAX_FOLLOWED, _MOST, _NEAR = 2000, 1000, 100
"""Functions that wait, all that is followed, at most, and what is so if something is unknown."""
_DEEPEST = 20
"""How many containers deep values are digested."""
_MOST_ITEMS = 100_000
"""Items of all containers that a digest covers, at most."""
_ALL_ATTRIBUTES = frozenset(
    (
        "vars", "__dict__", "dir", "getattr", "hasattr", "asdict", "astuple", "fields", "copy", "deepcopy",
        "dumps", "dump", "pformat", "pprint",
    )
)  # fmt: skip
"""Names with which code reads attributes of an object that it does not name."""


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
        self._all = Gathered()
        self._waiting: deque[Any] = deque()
        self._objects: list[tuple[Any, set[str]]] = []
        self._by_name: set[int] = set()
        self._read: set[str] = set()
        self._attribute = ""
        self._whole: set[int] = set()
        self._items = 0
        try:
            for root in roots:
                self.lines.append(self._text(root))
            self._follow_all()
        except values.Undescribed as error:
            self._doubt(str(error))
        except Exception as error:  # noqa: BLE001 - an object that answers in an odd way
            self._doubt(f"an object that cannot be read ({type(error).__name__})")

    @property
    def digest(self) -> str:
        """Return twelve letters of the digest of all lines."""
        return values.short("\n".join(self.lines))

    def digest_without(self, name: str) -> str:
        """Return the digest of all lines without the name of an operator, as torch writes it there."""
        return values.short("\n".join(self.lines).replace(name, "").replace(name.replace("::", "_"), ""))

    def _doubt(self, what: str) -> str:
        self.unknown = self.unknown or what
        return f"unknown: {what}"

    def _follow_all(self) -> None:
        """Follow what waits; once something is unknown only what is near: a pass with ``uuid`` has a key."""
        while not self.unknown:
            while self._waiting and not (self.unknown and len(self._numbers) > _NEAR):
                value = self._waiting.popleft()
                (self._class if isinstance(value, type) else self._function)(value)
                if len(self._numbers) > _MOST:
                    self._doubt(f"more than {_MOST} functions, classes and objects")
            if self.unknown or not (self._read_attributes() or self._read_what_was_put()):
                break
        for place in self._all.unknown():
            self._doubt(f"code that calls {place}")
        self.lines += self._all.lines()

    def _read_attributes(self) -> bool:
        """Add the attributes of objects that code names by now; return whether there were any."""
        return sum(self._attributes(*one) for one in list(self._objects) if not self.unknown) > 0

    def _read_what_was_put(self) -> bool:
        """Add what code of libraries reads that a program put there; return whether there was any."""
        found = [(place, value) for place, value in self._all.values() if place not in self._read]
        self._read.update(place for place, _ in found)
        self.lines += [f"{place}: {self._text(value, 1)}" for place, value in found]
        return bool(found)

    def _text(self, value: Any, depth: int = 0) -> str:
        """Return a value's text, and have the code in it followed."""
        value = without_wrapper(value)
        try:
            plain = values.describe_plain(value)
        except ValueError as error:
            return self._doubt(str(error))
        if plain is not None:
            self._note_plain(value)
            return plain
        if depth > _DEEPEST:
            return self._doubt(f"values that lie more than {_DEEPEST} containers deep")
        if isinstance(value, types.ModuleType):
            if not known.is_library(value):
                return self._object(value)
            self._all.modules.append(value)
            self._all.libraries.add(value.__name__)
            return f"module {value.__name__}"
        if isinstance(value, enum.Enum):
            own = [(name, self._text(one, depth + 1)) for name, one in asked.own_of_member(value)]
            kept = f"{value._name_} {self._text(value._value_, depth + 1)} {own or ''}"
            return f"{self._text(type(value), depth)} {kept}".rstrip()
        if isinstance(value, type):
            return self._type(value)
        if (number := self._numbers.get(id(value))) is not None:
            return f"seen {number}"
        if isinstance(value, questions.KINDS):
            self._ask(value)
        if known.is_c_function(value):
            return self._c_function(value, depth)
        if operator := operator_name(value):
            for one in self._named.get(operator.partition("::")[2].partition(".")[0], ()):
                self._text(one)
            return f"operator {operator}"
        number = self._number(value)
        if is_kernel(value):
            self._kernel(value)
            return f"kernel {number}"
        if isinstance(value, types.FunctionType):
            return self._function_text(value, number)
        if (container := self._container(value, depth)) is not None:
            return container
        if (base := values.plain_base(value)) is not None:
            return f"{base.__repr__(value)} as {self._object(value)}"
        if (inner := reading.held_by(value)) is not None:
            if type(value) is functools._lru_cache_wrapper:
                inner = [*inner, *kept_results(value, lambda one: FollowedCode([one]).digest)]
            kind = (
                values.type_name(type(value)) if is_library(type(value)) else self._text(type(value), depth)
            )
            return f"{kind} of {[self._text(one, depth + 1) for one in inner]}"
        return self._object(value)

    def _note_plain(self, value: Any) -> None:
        """Note what a value may mean to code beside its text: the name of a variable, a state, attributes."""
        if type(value) in (str, bytes):
            self._all.constants.add(value if type(value) is str else value.decode("ascii", "replace"))
        elif has_state(value):
            self._all.silent.append(value)
        if (
            values.is_tensor(value)
            and id(value) not in self._numbers
            and (value.__dict__ or reading.hooks_of(value))
        ):
            self._by_name.add(self._number(value))
            self._objects.append((value, set()))
            self.lines += [f"hook: {self._text(one, 1)}" for one in reading.hooks_of(value)]
        elif type(value).__module__ != "builtins":
            self._all.kinds[type(value)] = None

    def _number(self, value: Any) -> int:
        """Return the number of a value, by which it is named when it is reached again."""
        if len(self._numbers) >= MAX_FOLLOWED * 20:
            self._doubt("more objects than a digest covers")
        self._all.kept.append(value)
        return self._numbers.setdefault(id(value), len(self._numbers))

    def _function_text(self, function: types.FunctionType, number: int) -> str:
        if known.is_known(function.__code__):
            if not stands_at_home(function):
                for name, value in reading.cells_of(function).items():
                    if not remembers_a_call(function, name, value):
                        self.lines.append(f"{name} around {number}: {self._text(value, 1)}")
                self.lines.append(f"defaults {number}: {self._text(function.__defaults__, 1)}")
            file = os.path.basename(function.__code__.co_filename)
            return f"{file} {known.name_of(function)} {function.__code__.co_firstlineno}"
        if len(self._waiting) >= MAX_FOLLOWED:
            return self._doubt(f"more than {MAX_FOLLOWED} functions")
        self._waiting.append(function)
        return f"function {number}"

    def _type(self, value: type) -> str:
        if is_library(value):
            self._all.kinds[value] = None
            self._all.libraries.add(value.__module__)
            put = [(name, self._text(one, 1)) for name, one in asked.put_into(value)]
            return f"class {values.type_name(value)} {put or ''}".rstrip()
        if (number := self._numbers.get(id(value))) is None:
            number = self._number(value)
            self._waiting.append(value)
        return f"class {number}"

    def _c_function(self, value: Any, depth: int) -> str:
        self._all.makes_names |= value is getattr
        holder = getattr(value, "__self__", None)
        is_of_object = holder is not None and not isinstance(holder, (types.ModuleType, type))
        if is_of_object and "pybind" not in type(holder).__module__:
            return f"{value.__name__} of {self._text(holder, depth + 1)}"
        name, is_known = name_in_c(value)
        return name if is_known else self._doubt(name)

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
            made = self._text(value.default_factory, depth + 1) if isinstance(value, defaultdict) else ""
            pairs = [(self._text(key, depth + 1), self._text(item, depth + 1)) for key, item in items]
            return f"{name} {pairs} {made}".rstrip()
        if base is list and values.is_stack(value):
            return "a stack"
        items = list(base.__iter__(value))
        if base in (set, frozenset):
            if depth > 1 or (depth and self._attribute):  # what stands under a name has code that says more
                self._all.sets.setdefault(self._attribute if depth == 1 else "", []).append([*items])
            items.sort(key=values.place_of)
            return f"{name} {sorted(self._text(item, depth + 1) for item in items)}"
        texts = [self._text(item, depth + 1) for item in items]
        return f"{name} {texts}{f' of {value.maxlen}' if base is deque else ''}"

    def _object(self, value: Any) -> str:
        """Return the text of another object. Its attributes are read once the code that names them is."""
        number = self._numbers.get(id(value))
        if number is None or not any(value is one for one, _ in self._objects):
            number = self._number(value)
            self._objects.append((value, set()))
        if isinstance(value, types.ModuleType):
            return f"module {number}"
        if values.is_of_subclass(value):
            self.lines.append(f"{number} {values.data_of_subclass(value)}")
        if (kind := values.hidden_in(value)) is not None:
            self._doubt(f"an object of the type {values.type_name(kind)}")
        return f"object {number} of {self._text(type(value))}"

    def _attributes(self, value: Any, done: set[str]) -> bool:
        """Add the attributes of an object that code names and that are new; return whether there were any."""
        names = self._all.names - done
        number, found = self._numbers[id(value)], False
        if self._all.names & _ALL_ATTRIBUTES or (has_code_of_library(value) and number not in self._by_name):
            names |= set(reading.own_attributes(value)) - done
        if self._all.makes_names and isinstance(value, type):
            names |= set(type.__getattribute__(value, "__dict__")) - reading.NOT_OF_CODE - done
        elif id(value) in self._whole:
            names |= set(vars(value)) - _OF_MODULE - done
        if not names:
            return False
        done |= names
        for name in sorted(names):
            self._attribute = name
            for item in reading.attribute_of(value, name):
                self.lines.append(f"{number}.{name}: {self._text(item, 1)}")
                found = True
        self._attribute = ""
        is_holder = isinstance(value, (types.ModuleType, type))
        if not found and not is_holder and not reading.has_attributes(value):
            self._doubt(f"an object of the type {values.type_name(type(value))}")
        return bool(names)

    def _class(self, cls: type) -> None:
        """Add a class of the application: its bases, its functions, and its other attributes by name."""
        number = self._numbers[id(cls)]
        self.anything = True
        bases = [self._text(base) for base in cls.__bases__]
        self.lines.append(f"class {number} of {self._text(type(cls))}: {bases}")
        names = type.__getattribute__(cls, "__dict__")
        for name, value in list(names.items()):
            if name != "__match_args__" and (name in reading.NOT_OF_CODE or name == "_abc_impl"):
                continue
            if reading.is_code(value) or name in reading.OF_CLASS:
                self.lines.append(f"{number} has {name}: {self._text(value, 1)}")
        if "_abc_impl" in names:
            self.lines.append(f"{number} registers {sorted(reading.registered_with(cls))}")
        for rule, value in asked.rules_of(cls):
            self.lines.append(f"{number} by {rule}: {self._text(value, 1)}")
        self._objects.append((cls, set(reading.NOT_OF_CODE)))

    def _kernel(self, value: Any) -> None:
        """Add a Triton kernel, plain or under ``triton.autotune`` or ``triton.heuristics``."""
        self.anything, function = True, value.fn
        self.lines += kernel_lines(value, lambda one: self._text(one, 1))
        if not isinstance(source := getattr(value, "src", None), str):
            self._text(function)
            return
        constants, kernels = read_by_kernel(function)
        self.lines += [source, constants]
        for one in kernels:
            self._text(one)
        self.kernels[str(getattr(function, "__name__", "kernel"))] = values.short(f"{source}\n{constants}")

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            self._all.names.update(reading.names_of_text(value))
        return self._text(value)

    def _function(self, function: types.FunctionType) -> None:
        number, code, self.anything = self._numbers[id(function)], function.__code__, True
        self.lines += [f"function {number}", *reading.code_lines(code, self._constant)]
        self._all.codes.append(code)
        given = (function.__defaults__, function.__kwdefaults__)
        self.lines.append(f"defaults {' '.join(self._text(one, 1) for one in given)}")
        names = reading.names_in(code)
        for place in questions.of_names(code):
            self._doubt(place)
        asks = f"{function.__module__}.{function.__qualname__}" not in questions.answered
        self._all.names.update(names if asks else ())
        for name in names:
            self.lines += [f"operator {name}: {self._text(one)}" for one in self._named.get(name, ())]
        read = dict(reading.read_by(function, names))
        for name in makes_names(code):
            self._all.makes_names = True
            of = [read[name]] if name in read else reading.modules_read(read.values(), names)
            self._whole.update(map(id, of))
        self.lines += hash_seed.by_hash(code, read)
        for name, value in (*read.items(), *reading.imported_by(function)):
            is_asked = isinstance(value, types.ModuleType) and known.is_library(value)
            self.lines.append(f"{name}: {f'module {value.__name__}' if is_asked else self._text(value, 1)}")
            self._all.libraries.update((value.__name__,) if is_asked else ())
            if asks:
                self._asks(name, value, code)
        for name, value in sorted(vars(function).items()):
            if name != "__wrapped__" or name in self._all.names or isinstance(value, types.FunctionType):
                self.lines.append(f"{number}.{name}: {self._text(value, 1)}")

    def _ask(self, function: Any) -> None:
        """Add the answer of a function of a library that does not answer by its arguments alone."""
        self.lines += [f"{place}: {self._text(one, 1)}" for place, one in asked.of_function(function)]
        self._all.libraries.add(str(getattr(function, "__module__", None)))
        if place := questions.of_value(function):
            self._doubt_call(place)

    def _doubt_call(self, place: str) -> None:
        if place in registries.PACKAGES:
            self._all.packages.add(place)
        else:
            self._doubt(f"code that calls {place}")

    def _asks(self, name: str, value: Any, code: types.CodeType) -> None:
        """Add what code asks of a value that is a module, or the environment."""
        for place, one in asked.of_module(value, code):
            self.lines.append(f"{place}: {self._text(one, 1)}")
        for place in questions.of_path(name, value, code):
            self._doubt_call(place)
        if variables.reads_environment(value, code):
            self._all.note_environment(name, value, code)


_OF_MODULE = {"__builtins__", "__loader__", "__spec__", "__cached__", "__file__", "__name__", "__doc__"}
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, types.MappingProxyType)
