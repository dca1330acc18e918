"""Finds functions of torch that a program changed in place: the old object, with other code, defaults or
variables around it.

What stands under the name is the same object, so a walk over names does not see it. CPython tells audit hooks
before a function gets other code or defaults; `watch` keeps what each function of torch had before. What was
changed before `watch` is found by `compare`, with the code that Python loads from torch's files. No one is
told of a variable in a closure: `keep` keeps the functions in closures as they were judged.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

_EVENT = "object.__setattr__"
"""The event of an assignment to one of these attributes (CPython, ``Objects/funcobject.c``)."""
_NAMES = ("__code__", "__defaults__", "__kwdefaults__")

_Written = tuple[types.CodeType, types.CodeType]
"""The code of a function, and the code around it."""

_before: dict[int, tuple[types.FunctionType, tuple[Any, ...]]] = {}
"""Id of a function that was assigned to -> the function, and what it had first."""
_found: dict[str, None] = {}
"""Names of functions that had been changed before `watch`."""
_cells: dict[int, tuple[types.CellType, Any, str]] = {}
"""Id of a variable in a closure -> it, the function that it held first, and the function around it."""
_late: bool | None = None
"""Whether torch was loaded before `watch`; ``None`` before it."""


def watch() -> None:
    """Keep from now on what torch's functions had before a program gave them other code or defaults. An audit
    hook cannot be taken off again. A second call changes nothing."""
    global _late
    if _late is None:
        _late = "torch" in sys.modules
        sys.addaudithook(_see)


def is_late() -> bool:
    """Return whether torch may have been changed before `watch`: it was loaded by then."""
    return _late is not False


def _see(event: str, arguments: tuple[Any, ...]) -> None:
    if event != _EVENT:
        return
    with contextlib.suppress(Exception):  # an error here would be the program's
        function, name, _ = arguments
        if type(function) is not types.FunctionType or name not in _NAMES or id(function) in _before:
            return
        if "torch" in function.__code__.co_filename and not _is_of_torch(sys._getframe(1)):
            _before[id(function)] = (function, _state(function))


def _is_of_torch(frame: types.FrameType) -> bool:
    """Return whether torch itself assigns: what its own files do is torch as released."""
    from . import known

    return known.is_torchs(frame.f_code)


def _state(function: types.FunctionType) -> tuple[Any, ...]:
    return (function.__code__, function.__defaults__, function.__kwdefaults__)


def changed() -> str:
    """Return in words the first function of torch that has other code or defaults than it had at first; empty
    if there is none."""
    from . import known

    for function, before in list(_before.values()):
        if known.is_torchs(before[0]):
            for name, old, new in zip(_NAMES, before, _state(function), strict=True):
                if old is not new:
                    return (
                        f"{function.__module__}.{function.__qualname__} has another {name} than torch gave it"
                    )
    held = _changed_variable()
    if held:
        return f"{held} holds another function in its closure than torch gave it"
    return next((f"{name} has other code or defaults than its file" for name in _found), "")


def _changed_variable() -> str:
    kept = list(_cells.values())
    try:
        now = list(map(_CONTENT, [cell for cell, _, _ in kept]))
    except ValueError:  # a variable was deleted
        return next(name for cell, _, name in kept if not _has_content(cell))
    return next((name for (_, first, name), value in zip(kept, now, strict=True) if value is not first), "")


def _has_content(cell: types.CellType) -> bool:
    with contextlib.suppress(ValueError):
        return cell.cell_contents is not cell
    return False


_CONTENT = operator.attrgetter("cell_contents")


def keep(values: Iterable[Any]) -> None:
    """Keep the functions that stand in closures of torch's functions, for `changed`. What a closure holds
    beside functions is the state of a wrapper, which torch itself changes."""
    waiting = [value for value in values if type(value) in _HOLDERS]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is staticmethod or kind is classmethod:
            waiting.append(value.__func__)
        elif kind is property:
            waiting += [value.fget, value.fset]
        elif kind is types.FunctionType:
            if value.__closure__ is not None:
                waiting += _keep_closure(value)
            if "__wrapped__" in value.__dict__:
                waiting.append(value.__dict__["__wrapped__"])


def _keep_closure(function: types.FunctionType) -> list[Any]:
    """Keep the functions in a closure that are new; return them."""
    new = []
    for cell in function.__closure__ or ():
        if id(cell) not in _cells:
            try:
                held = cell.cell_contents
            except ValueError:  # an empty one
                continue
            if callable(held):
                _cells[id(cell)] = (cell, held, f"{function.__module__}.{function.__qualname__}")
                new.append(held)
    return new


_HOLDERS = frozenset((types.FunctionType, staticmethod, classmethod, property))


def forget() -> None:
    """Let go of what was judged."""
    _cells.clear()


def compare(values: Iterable[Any]) -> None:
    """Compare torch's functions with the code that Python loads from their files, if torch was loaded before
    `watch`: reads the files. What no file tells is judged by its name alone, elsewhere."""
    for value in values if is_late() else ():
        function: Any = value.fget if type(value) is property else value
        function = function.__func__ if type(function) in (staticmethod, classmethod) else function
        while type(function) is types.FunctionType:
            if not _is_as_written(function):
                _found.setdefault(f"{function.__module__}.{function.__qualname__}")
            function = function.__dict__.get("__wrapped__")


def _is_as_written(function: types.FunctionType) -> bool:
    from ..code.constants import code_digest
    from . import known

    code = function.__code__
    if not known.is_torchs(code):
        return True
    written = _code_of_file(code.co_filename, function.__module__).get((code.co_firstlineno, code.co_name))
    if written is None:
        return True
    own = code_digest(code)
    return any(own == code_digest(one) and _are_given(function, around) for one, around in written)


def _are_given(function: types.FunctionType, around: types.CodeType) -> bool:
    """Return whether the code around a function has its defaults. Of numbers, those with a fraction alone
    are compared: a file gives whole ones by names, too, such as a member of an enumeration."""
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    given = {repr(each) for one in around.co_consts for each in (one if type(one) is tuple else (one,))}
    return all(repr(one) in given for one in defaults if type(one) in (float, str))


@functools.cache
def _code_of_file(file: str, module: str) -> dict[tuple[int, str], list[_Written]]:
    """Return the code of all functions of a file by first line and name, each with the code around it."""
    loader = getattr(getattr(sys.modules.get(module), "__spec__", None), "loader", None)
    if loader is None or not hasattr(loader, "get_code") or getattr(loader, "path", "") != file:
        return {}
    try:
        top = loader.get_code(module)
    except Exception:  # noqa: BLE001 - a loader of any kind; no code is no answer
        return {}
    found: dict[tuple[int, str], list[_Written]] = {}
    for one, around in _inside(top) if top is not None else ():
        found.setdefault((one.co_firstlineno, one.co_name), []).append((one, around))
    return found


def _inside(code: types.CodeType) -> Iterator[_Written]:
    for one in code.co_consts:
        if type(one) is types.CodeType:
            yield one, code
            yield from _inside(one)
