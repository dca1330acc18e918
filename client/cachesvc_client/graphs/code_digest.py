"""What functions do: their code with all that they call, as digests that are equal in every process.

Neither places nor names of files are in them, nor comments, lines or annotations; constants are, also those
of a module that they read. PyTorch, Triton and the standard library are not followed: their versions
are in every key. What changes while a program runs (lists, dicts, objects) is passed over. Nothing is
called, imported or parsed, and nothing raises: a few microseconds for a function.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

MAX_FOLLOWED = 500
"""Functions and classes, at most: a body that calls into a large library."""
_LIBRARIES = frozenset({"torch", "torchgen", "triton", *sys.stdlib_module_names})
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))


class Followed:
    """Everything that the functions and classes of ``roots`` reach. ``named``: what stands behind names that
    are no values of Python's. ``lines``: what all of it does. ``anything``: whether there is anything of the
    application's. ``kernels``: the Triton kernels among it, with the digests of their own sources and
    constants."""

    def __init__(self, roots: Iterable[Any], named: Mapping[str, Sequence[Any]] | None = None) -> None:
        self._named = named or {}
        self.lines: list[str] = []
        self.kernels: dict[str, str] = {}
        self.anything = False
        self._seen: dict[int, Any] = {}  # held, so that no address is used again
        self._waiting = list(roots)
        while self._waiting and len(self._seen) < MAX_FOLLOWED:
            self._take(self._waiting.pop(0))

    @property
    def digest(self) -> str:
        """Twelve letters of the digest of all lines."""
        return short("\n".join(self.lines))

    def _take(self, thing: Any) -> None:
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, (types.MethodType, classmethod, staticmethod)):
            self._waiting.append(thing.__func__)
        elif isinstance(thing, functools.partial):
            self._waiting += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, type):
            self._waiting += [part for _, part in sorted(vars(thing).items()) if _followed(part)]
            self._waiting += [base for base in thing.__bases__ if _followed(base)]
        elif _triton(thing):
            self._kernel(thing)
        elif hasattr(thing, "__dict__") and not isinstance(thing, types.ModuleType):
            # A record of functions, such as torch.library's of a backward.
            self._waiting += [part for _, part in sorted(vars(thing).items()) if _followed(part)]

    def _kernel(self, thing: Any) -> None:
        """Triton's: under ``triton.autotune`` or ``triton.heuristics``, or plain."""
        self.anything, function = True, thing.fn
        self._waiting.append(function)
        if isinstance(source := getattr(thing, "src", None), str):
            read = "\n".join(_constants(function)) if isinstance(function, types.FunctionType) else ""
            self.kernels[str(getattr(function, "__name__", "kernel"))] = short(f"{source}\n{read}")
            self.lines.append(source)
            return
        configurations = sorted(str(one) for one in getattr(thing, "configs", None) or ())
        self.lines += [line for line in configurations if " at 0x" not in line]

    def _function(self, function: types.FunctionType) -> None:
        if not _library(function):
            self.anything = True
            self.lines += _code(function.__code__)
            self.lines += _plain(function.__defaults__)
            self.lines += _plain(tuple((function.__kwdefaults__ or {}).items()))
            for name in _names(function.__code__):
                self._waiting += self._named.get(name, ())
        self.lines += _constants(function)
        self._waiting += [thing for _, thing in _read(function) if _followed(thing)]
        self._waiting += _cells(function).values()


def _code(code: types.CodeType) -> Iterator[str]:
    yield f"{code.co_argcount} {code.co_kwonlyargcount} {code.co_flags} {code.co_names} {code.co_code.hex()}"
    for constant in code.co_consts:
        yield from _code(constant) if isinstance(constant, types.CodeType) else _plain(constant)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """The variables of the functions around it, as far as they are set."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _read(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function reads outside of itself, also as attributes of the application's modules; of a
    library's, what was handed to it."""
    cells, names = _cells(function), tuple(dict.fromkeys(_names(function.__code__)))
    if _library(function):
        yield from cells.items()
        return
    for name in (*cells, *names):
        thing = cells[name] if name in cells else function.__globals__.get(name)
        if not isinstance(thing, types.ModuleType):
            yield name, thing
        elif not _in_library(thing.__name__):
            yield from ((other, vars(thing)[other]) for other in names if other in vars(thing))


def _constants(function: types.FunctionType) -> list[str]:
    """The numbers and texts among them. Triton's ``constexpr`` holds a value."""
    found = ((name, _value(thing)) for name, thing in _read(function))
    return [f"{name}={text}" for name, value in found if value is not None for text in _plain(value)]


def _value(thing: Any) -> Any:
    return getattr(thing, "value", None) if type(thing).__module__.startswith("triton.") else thing


def _plain(value: Any) -> list[str]:
    if isinstance(value, frozenset):
        return sorted(text for item in value for text in _plain(item))
    if isinstance(value, tuple):
        return [text for item in value for text in _plain(item)]
    return [repr(value)] if type(value) in _PLAIN else []


def _followed(thing: Any) -> bool:
    """Whether it does something, and is the application's, or around something of the application's."""
    if isinstance(thing, (types.MethodType, classmethod, staticmethod)):
        thing = thing.__func__
    if isinstance(thing, types.FunctionType) and thing.__closure__:
        return True
    return _triton(thing) or (callable(thing) and not _library(thing))


def _triton(thing: Any) -> bool:
    """A kernel, or what tunes one; Triton's own functions are its version's."""
    return type(thing).__module__.startswith("triton.") and hasattr(thing, "fn") and not _library(thing.fn)


def _library(thing: Any) -> bool:
    return _in_library(str(getattr(thing, "__module__", None) or "builtins"))


def _in_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def short(text: str) -> str:
    """Twelve letters of a text's digest: enough to tell two versions of it apart."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
