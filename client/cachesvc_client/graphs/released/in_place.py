"""Finds functions of torch that a program changed in place: the old object, with other code, defaults or
variables around it.

What stands under the name is the same object, so a walk over names does not see it. CPython tells audit hooks
before a function gets other code or defaults; `watch` keeps what each function of torch had before. What was
changed before `watch` is found by `compare`, with the code that Python loads from torch's files, and with the
texts of these. No one is told of a variable in a closure: `keep` keeps the functions in closures as they were
judged, and of those that a wrapper says that it wraps it tells whether they are there.
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
    _compared.clear()


def compare(values: Iterable[Any]) -> None:
    """Compare torch's functions with the code that Python loads from their files, if torch was loaded before
    `watch`: reads the files. What no file tells is judged by its name alone, elsewhere."""
    waiting = [value for value in values if type(value) in _HOLDERS] if is_late() else []
    while waiting:
        function: Any = waiting.pop()
        kind = type(function)
        if kind is staticmethod or kind is classmethod:
            waiting.append(function.__func__)
        elif kind is property:
            waiting += [function.fget, function.fset]
        elif kind is types.FunctionType and id(function) not in _compared:
            _compared[id(function)] = function
            if not _is_as_written(function):
                _found.setdefault(f"{function.__module__}.{function.__qualname__}")
            waiting += _functions_around(function)


_compared: dict[int, types.FunctionType] = {}
"""Functions that were compared with their files."""


def _functions_around(function: types.FunctionType) -> list[Any]:
    """Return the functions that a function wraps, and those in its closure."""
    found = [function.__dict__["__wrapped__"]] if "__wrapped__" in function.__dict__ else []
    return found + [one for one in _contents(function) if type(one) is types.FunctionType]


def _contents(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            yield cell.cell_contents


def _is_as_written(function: types.FunctionType) -> bool:
    from ..code.constants import code_digest
    from . import defaults, known

    code = function.__code__
    if not known.is_torchs(code):
        return True
    if not (_holds_what_it_wraps(function) and defaults.are_given(function)):
        return False
    written = _code_of_file(code.co_filename, function.__module__).get((code.co_firstlineno, code.co_name))
    if written is None:
        return True
    own = code_digest(code)
    return any(own == code_digest(one) for one in written)


_BY_NAME = "sym_node.py"
"""The file of wrappers that find what they wrap by its name."""


def _holds_what_it_wraps(function: types.FunctionType) -> bool:
    """Return whether the closure of a wrapper has the function that the wrapper says that it wraps, or has a
    wrapper of it. A wrapper without a function in its closure calls another one."""
    wrapped = function.__dict__.get("__wrapped__")
    waiting = [one for one in _contents(function) if type(one) is types.FunctionType]
    if type(wrapped) is not types.FunctionType or not waiting:
        return True
    if function.__code__.co_filename.endswith(_BY_NAME):
        return True
    seen = {id(function)}
    while waiting:
        one = waiting.pop()
        if one is wrapped:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            waiting += [each for each in _contents(one) if type(each) is types.FunctionType]
    return False


@functools.cache
def _code_of_file(file: str, module: str) -> dict[tuple[int, str], list[types.CodeType]]:
    """Return the code of all functions of a file by first line and name."""
    loader = getattr(getattr(sys.modules.get(module), "__spec__", None), "loader", None)
    if loader is None or not hasattr(loader, "get_code") or getattr(loader, "path", "") != file:
        return {}
    try:
        top = loader.get_code(module)
    except Exception:  # noqa: BLE001 - a loader of any kind; no code is no answer
        return {}
    found: dict[tuple[int, str], list[types.CodeType]] = {}
    for one in _inside(top) if top is not None else ():
        found.setdefault((one.co_firstlineno, one.co_name), []).append(one)
    return found


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    for one in code.co_consts:
        if type(one) is types.CodeType:
            yield one
            yield from _inside(one)
