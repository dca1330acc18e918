"""Says what describes a custom pass of Inductor: what it says itself, its code, and what it was made with.

A pass answers ``uuid()`` for PyTorch's key (``torch._inductor.custom_graph_pass``, 2.6 on). Passes of vLLM
also count and time what they did in attributes of their own: these differ in each process, and decide
nothing.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

from . import questions
from .reading import cells_of, names_in

_CHANGE = frozenset("add append clear discard extend insert pop popitem remove setdefault update".split())
"""Methods that change the container which is the value of an attribute."""


def described(value: Any) -> Any:
    """Return what describes ``value`` in a digest of code.

    Of a pass with ``uuid()`` that is its answer, its class, and its attributes except those that a call of it
    writes; of anything else the value itself. What ``uuid`` asks is answered from then on. Never raises.
    """
    cls = type(value)
    if isinstance(value, type) or not callable(getattr(cls, "uuid", None)):
        return value
    try:
        questions.answered.update(f"{one.__module__}.{one.__qualname__}" for one in _methods(cls, "uuid"))
        written = frozenset(name for function in _called(cls) for name in _written_by(function.__code__))
        made_with = {name: one for name, one in vars(value).items() if name not in written}
        return (cls, str(value.uuid()), made_with)
    except Exception:  # noqa: BLE001 - an object that answers in an odd way
        return value


def _called(cls: type) -> Iterator[types.FunctionType]:
    """Yield the functions of a class that a call of its objects may run, those in wrappers too."""
    seen: set[int] = set()
    waiting = _methods(cls, "__call__")
    while waiting:
        one = waiting.pop()
        if not isinstance(one, types.FunctionType) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [getattr(one, "__wrapped__", None), *cells_of(one).values()]
        waiting += [method for name in names_in(one.__code__) for method in _methods(cls, name)]


def _methods(cls: type, name: str) -> list[Any]:
    """Return what a class and its bases have under a name: a method may call the one that it overrides."""
    return [vars(base)[name] for base in cls.__mro__ if name in vars(base)]


def _written_by(code: types.CodeType) -> Iterator[str]:
    """Yield the names of attributes that code sets, or whose containers it changes by a method."""
    held = ""
    for step in dis.get_instructions(code):
        if step.opname == "STORE_ATTR":
            yield step.argval
        if held and step.argval in _CHANGE:
            yield held
        held = step.argval if step.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
