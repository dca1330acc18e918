"""Describes an object of a class of a program, such as a model's configuration, by its class and all of its
values."""

from __future__ import annotations

from typing import Any

from .digests import digest
from .objects import describe
from .optimizers import is_optimizer

_OF_PYTHON = 1 << 9
"""The flag of a class that Python code made (``Py_TPFLAGS_HEAPTYPE``)."""
_DEEPEST = 6


def is_instance(value: Any) -> bool:
    """Return whether an object, or a dict or list with one in it, has no words but those of its class and its
    values. An optimizer has words of its own."""
    if is_optimizer(value):
        return False
    try:
        describe(value)
    except TypeError:
        return type(value) in (dict, list, tuple) or _is_plain_instance(value)
    return False


def describe_instance(value: Any) -> str:
    """Return what an object is. Raises ``TypeError`` for one that may have more than its ``__dict__`` says,
    or has what no words describe."""
    return f"{describe(type(value))} {digest(_text(value, 0))}"


def _text(value: Any, depth: int) -> str:
    if depth > _DEEPEST:
        raise TypeError("the values of an object lie too deep to be compared")
    if type(value) is dict:  # a trace may go through it in its order
        pairs = (f"{_text(key, depth + 1)}: {_text(one, depth + 1)}" for key, one in value.items())
        return f"dict {{{', '.join(pairs)}}}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__} [{', '.join(_text(one, depth + 1) for one in value)}]"
    if _is_plain_instance(value):
        return f"{describe(type(value))} {_text(vars(value), depth + 1)}"
    return describe(value)


def _is_plain_instance(value: Any) -> bool:
    """Return whether all that an object has lies in its ``__dict__``."""
    kind = type(value)
    classes = [one for one in kind.__mro__ if one is not object]
    is_of_python = all(one.__flags__ & _OF_PYTHON and not vars(one).get("__slots__") for one in classes)
    return is_of_python and not isinstance(value, type) and type(getattr(value, "__dict__", None)) is dict
