"""Finds what stands in a class of torch that its source did not put there."""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from .known import (
    C_KINDS,
    GENERATED,
    STATE,
    is_c_function,
    is_known,
    is_own_module,
    is_torchs,
    name_of,
    own_name,
)
from .source import assigned, has_name, in_class, source, together, words
from .wrappers import OPENED_SET, are_functions_known, are_stand_ins, functions_in, is_made, leads_to


def is_added_to_class(cls: type, name: str) -> bool:
    """Return whether a program gave a class of torch an attribute that neither the class nor a base of it had
    before. A special method is none: Python reads it by itself."""
    if name.startswith("__") or any(name in vars(base) for base in cls.__mro__[1:]):
        return False
    file = file_of_class(cls)
    return bool(file) and not has_name(source(file).text, name)


def class_changes(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class of torch that its source did not put there."""
    qualified = cls.__qualname__
    for name, value in list(vars(cls).items()):
        kind = type(value)
        if kind in STATE:
            continue
        function = value
        if kind is staticmethod or kind is classmethod:
            function = value.__func__
        elif kind is property:
            function = value.fget
        if type(function) is types.FunctionType:
            code = function.__code__
            if function.__closure__ is None and not function.__dict__:
                is_written = name_of(function) == f"{qualified}.{name}" and is_torchs(code)
                is_given = name.startswith("_") and not is_torchs(code) and is_known(code)
                if is_written or is_given or _is_of_dataclass(cls, name, function):
                    continue
        elif _is_of_c(kind, name, value) or not (callable(value) or hasattr(kind, "__get__")):
            continue
        if not _of_class(cls, file_of_class(cls), name, value) and not is_added_to_class(cls, name):
            yield name, value


def _is_of_c(kind: type, name: str, value: Any) -> bool:
    """Return whether a value is a function in C that has the name by itself."""
    is_function = kind in C_KINDS or kind.__name__ == "instancemethod"
    return is_function and getattr(value, "__name__", name) == name


@functools.cache
def file_of_class(cls: type) -> str:
    """Return the file of torch where a class was written. Its ``__module__`` may name another one."""
    file = str(getattr(sys.modules.get(cls.__module__ or ""), "__file__", ""))
    if "." in cls.__qualname__ or cls.__name__ in source(file).classes:
        return file
    written = (
        value.__code__.co_filename
        for name, value in vars(cls).items()
        if type(value) is types.FunctionType and name_of(value) == f"{cls.__qualname__}.{name}"
    )
    return next(written, file)


def _of_class(cls: type, file: str, name: str, value: Any) -> bool:
    tensor = sys.modules["torch"].Tensor
    if cls is not tensor and vars(tensor).get(name) is value:
        return True
    if any(vars(base).get(name) is value for base in cls.__mro__[1:]):
        return True
    text = in_class(file, cls.__qualname__) or source(file).text
    if is_c_function(value):
        own_text = in_class(file, cls.__qualname__)
        same = own_name(value) in (name, "") or not own_text or _is_given(name, value)
        return same or together(own_text, name, {own_name(value)})
    kind = value if isinstance(value, type) else type(value)
    is_state = not (callable(value) or kind in OPENED_SET or hasattr(kind, "__get__"))
    functions = [] if is_state else list(functions_in(value))
    if not functions:
        return is_own_module(kind.__module__ or "") or not callable(value)
    if _is_generated(cls, name, functions):
        return True
    if not are_functions_known([one for one in functions if not _is_of_dataclass(cls, name, one)]):
        return False
    plain = name.removeprefix(f"_{cls.__name__.lstrip('_')}") if "__" in name[2:] else name
    if leads_to(functions, file, f"{cls.__qualname__}.{plain}") or are_stand_ins(functions):
        return True
    own = {part for one in functions for part in name_of(one).split(".")}
    own -= {name, cls.__name__, "<locals>"}
    native = any(is_c_function(vars(base).get(name)) for base in cls.__mro__[1:-1])
    is_free = name.startswith("__") or not (native or f" def {name}(" in text)
    if is_free and not any(is_torchs(one.__code__) for one in functions):
        return True
    if together(text, name, own):
        return True
    files = {one.__code__.co_filename for one in functions}
    if any(_puts(source(one).text, name, own) for one in (file, *files)):
        return True
    is_object = type(value) not in (types.FunctionType, staticmethod, classmethod, property)
    if f" {name} = " in text or f" {name}: " in text or (is_object and f".{name} = " in source(file).text):
        return True
    if not in_class(file, cls.__qualname__) and file in files and name_of(functions[0]).endswith(f".{name}"):
        return True
    sets = "setattr(" in source(file).text or "vars()[" in text or "locals()[" in text
    if f"\n    def {name}(" in text:
        return is_made(functions) and any("setattr(" in source(one).text for one in files - {file})
    return (is_object or is_made(functions)) and (sets or not native or assigned(text, name))


def _puts(text: str, name: str, own: set[str]) -> bool:
    """Return whether a text puts something of these names into a class: ``Class.name = own``."""
    lines = (text[text.rfind("\n", 0, place) : text.find("\n", place)] for place in words(text, name))
    return any(f".{name} = " in line and not own.isdisjoint(re.findall(r"\w+", line)) for line in lines)


def _is_of_dataclass(cls: type, name: str, function: types.FunctionType) -> bool:
    if function.__code__.co_filename != GENERATED:
        return False
    home = str(getattr(sys.modules.get(cls.__module__ or ""), "__file__", ""))
    return ("__dataclass_fields__" in vars(cls) and name.startswith("__")) or "exec(" in in_class(
        home, cls.__qualname__
    )


def _is_given(name: str, value: Any) -> bool:
    """Return whether Python or torch's C code gives a class a C function under another name."""
    return (name, own_name(value)) in (
        ("__torch_function__", "_disabled_torch_function_impl"),
        ("__torch_dispatch__", "_disabled_torch_dispatch_impl"),
        ("_value_repr_", "__repr__"),
        ("_new_member_", "__new__"),
        ("__new_member__", "__new__"),
        ("__new__", "__new__"),
    )


def _is_generated(cls: type, name: str, functions: Sequence[Any]) -> bool:
    """Return whether the standard library wrote functions for a dataclass, a named tuple or an
    enumeration."""
    if not (name.startswith("__") or name in ("_make", "_replace", "_asdict")):
        return False
    if not {"__dataclass_fields__", "_fields", "_member_map_", "__attrs_attrs__"} & vars(cls).keys():
        return False
    first = functions[0].__code__
    return not is_torchs(first) and all(
        one.__code__.co_filename == GENERATED or is_known(one.__code__) for one in functions
    )
