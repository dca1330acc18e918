"""Puts in words what a trace read and no guard of Dynamo's compares, and compares it in a service."""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import sys
from typing import Any

from ..stored import Reads
from .objects import describe, named

_NOTHING = "nothing"
"""The words for a name that a module does not have."""
_ABSENT = object()


def changed_read(reads: Reads) -> str:
    """Return in words the first read of a record that is another one here; else an empty text."""
    for name, recorded in reads.environment.items():
        if variable_digest(name) != recorded:
            return f"the variable {name} of the environment has another value"
    for read, recorded in reads.answers.items():
        try:
            now = answer_text(named(read.module, read.name)(*read.arguments))
        except Exception as error:  # noqa: BLE001 - a function that fails here, or is not there
            now = f"{type(error).__name__}"
        if now != recorded:
            return f"{read.module}.{read.name}() is {now}, and was {recorded}"
    for pair, is_one in reads.instances.items():
        kind, asked = (value_at(place) for place in pair)
        if not isinstance(kind, type) or not isinstance(asked, type) or issubclass(kind, asked) != is_one:
            return f"{pair[0]} is another subclass of {pair[1]}"
    for place, recorded in reads.names.items():
        module, _, name = place.partition(":")
        if words_at(sys.modules.get(module), name) != recorded:
            return f"{module}.{name} is another one"
    return ""


def value_at(place: str) -> Any:
    try:
        return named(*place.split(":", 1))
    except LookupError:
        return None


def words_at(module: Any, name: str) -> str:
    """Return what a module has under a name, as `words_of` does. Of the interpreter's own modules, whose
    attributes Dynamo does not guard, it says what other objects are, too."""
    value = getattr(module, name, _ABSENT)
    if value is _ABSENT:
        return _NOTHING
    own = str(getattr(module, "__name__", "")).partition(".")[0] in sys.stdlib_module_names
    return words_of(value) or (_words_of_data(value) if own else "")


def is_without_words(value: Any) -> bool:
    """Return whether an object is no function, class or module, and has a state that cannot be described."""
    return not callable(value) and not _words_of_data(value)


def _words_of_data(value: Any) -> str:
    """Return what an object is that is no function and no class; an empty text where that has no words. An
    object without attributes is told by its class."""
    if type(value) is object:
        return "a sentinel"
    try:
        return describe(value)
    except TypeError:
        kind = type(value)
        is_plain = hasattr(value, "__dict__") and not (hasattr(kind, "__len__") or hasattr(kind, "__slots__"))
        has_state = not is_plain or vars(value)
        return "" if has_state else f"an object of {kind.__module__}.{kind.__qualname__}"


def words_of(value: Any) -> str:
    """Return what a function or a class is; an empty text for other objects, which guards compare."""
    if not callable(value):
        return ""
    try:
        return describe(value)
    except TypeError:
        return f"an object of {type(value).__module__}.{type(value).__qualname__}"


def answer_text(value: Any) -> str:
    """Return the answer of a function as a text. Raises ``TypeError`` for one that has none."""
    if isinstance(value, importlib.machinery.ModuleSpec):
        loader, places = type(value.loader).__qualname__, value.submodule_search_locations
        return f"{value.name} of {loader} at {value.origin}, {list(places or ())}"
    return describe(value)


def variable_digest(name: str) -> str:
    """Return a digest of a variable of the environment: a bundle shows no values."""
    value = os.environ.get(name)
    return "absent" if value is None else hashlib.sha256(f"{name}={value}".encode()).hexdigest()[:16]
