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

from .reading import cells_of

_MAKE = frozenset(("__init__", "__new__", "__post_init__"))
"""Methods that run before an object is used: what they write, it was made with."""
_CHANGE = frozenset("add append clear discard extend insert pop popitem remove setdefault update".split())
"""Methods that change the container which is the value of an attribute."""


def described(value: Any) -> Any:
    """Return what describes ``value`` in a digest of code.

    Of a pass with ``uuid()`` that is its answer, its class, and its attributes except those that its methods
    write while they run; of anything else the value itself. Never raises.
    """
    cls = type(value)
    if isinstance(value, type) or not callable(getattr(cls, "uuid", None)):
        return value
    try:
        written = frozenset(name for function in _methods(cls) for name in _written_by(function.__code__))
        made_with = {name: one for name, one in vars(value).items() if name not in written}
        return (cls, str(value.uuid()), made_with)
    except Exception:  # noqa: BLE001 - an object that answers in an odd way
        return value


def _methods(cls: type) -> Iterator[types.FunctionType]:
    """Yield the functions that run when an object of a class is used, those in wrappers too."""
    found: list[Any] = []
    for base in cls.__mro__[:-1]:
        found += [one for name, one in vars(base).items() if name not in _MAKE]
    seen: set[int] = set()
    while found:
        one = found.pop()
        if not isinstance(one, types.FunctionType) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        found += [getattr(one, "__wrapped__", None), *cells_of(one).values()]


def _written_by(code: types.CodeType) -> Iterator[str]:
    """Yield the names of attributes that code sets, or whose containers it changes by a method."""
    held = ""
    for step in dis.get_instructions(code):
        if step.opname == "STORE_ATTR":
            yield step.argval
        if held and step.argval in _CHANGE:
            yield held
        held = step.argval if step.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
