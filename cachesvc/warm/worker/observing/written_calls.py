"""Read a call of the program as its source has it: what is called, and with which plain arguments.

A library's function has changed its parameters when it makes a module: ``from_pretrained`` removes keywords
from them. The source of the program's own line has them as written. Nothing of the program is run for this.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

_MISSING = object()


class NotPlain(Exception):
    """Says that an expression is not plain: its value cannot be read without running something."""


def written_call(frame: FrameType, called: CodeType) -> tuple[str, str, dict[str, Any]] | None:
    """Return module, name and arguments of what the frame's line calls now, which a spec may call again.

    ``called``: the code that the line runs. Return ``None`` if the line calls no function or class of a
    module by its name, or no source is there. Raise ``NotPlain`` if an argument is not a plain value.
    """
    node = _call_node(frame.f_code, frame.f_lasti)
    place = _place(node.func, frame) if node is not None else None
    if node is None or place is None:
        return None
    module, name, function = place
    args = [_value(item, frame) for item in node.args]
    kwargs: dict[str, Any] = {}
    for item in node.keywords:
        value = _value(item.value, frame)
        kwargs |= value if item.arg is None else {item.arg: value}
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    return module, name, _by_name(bound, called)


def _by_name(bound: inspect.BoundArguments, called: CodeType) -> dict[str, Any]:
    """Return all arguments by name. Raise ``NotPlain`` for positions without one.

    A signature of ``*args`` may be one for its documentation: the code has the names.
    """
    own = [name for name in called.co_varnames[: called.co_argcount] if name not in ("self", "cls")]
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is kind.VAR_POSITIONAL and not named and len(value) <= len(own):
            named |= dict(zip(own, value, strict=False))
        elif kind in (kind.VAR_POSITIONAL, kind.POSITIONAL_ONLY):
            raise NotPlain(f"*{name}")
        else:
            named |= value if kind is kind.VAR_KEYWORD else {name: value}
    return named


def _call_node(code: CodeType, instruction: int) -> ast.Call | None:
    """Return the call in the source that an instruction of the code makes."""
    places = getattr(code, "co_positions", None)  # Python 3.11
    if places is None:
        return None
    begin, end, column, end_column = list(places())[instruction // 2]
    return _calls(code.co_filename).get((begin, end, column, end_column))


@functools.lru_cache(maxsize=32)
def _calls(file: str) -> dict[tuple[int | None, ...], ast.Call]:
    """Return the calls of a file by their place."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    return {
        (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset): node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }


def _place(node: ast.expr, frame: FrameType) -> tuple[str, str, Any] | None:
    """Return module, name and value of a function or class that an expression such as ``a.b.c`` names."""
    try:
        value = _value(node, frame)
    except NotPlain:
        return None
    names = list(_names(node))
    root = _value(ast.Name(names[0]), frame)
    module, name = "", ""
    for part in names[1:]:
        if not isinstance(root, ModuleType):
            break
        module, name = root.__name__, ".".join([name, part]).strip(".")
        root = vars(root).get(part, _MISSING)
        if isinstance(root, ModuleType):
            name = ""
    if not module:
        module, name = getattr(root, "__module__", ""), getattr(root, "__qualname__", "")
        name = ".".join([name, *names[1:]]) if name else ""
    known = isinstance(root, type) or inspect.isroutine(root)
    return (module, name, value) if known and module and name and "<locals>" not in name else None


def _names(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        yield from _names(node.value)
        yield node.attr
    elif isinstance(node, ast.Name):
        yield node.id


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a plain expression. Raise ``NotPlain``."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals):
            if node.id in names:
                return names[node.id]
    elif isinstance(node, ast.Attribute):
        return _attribute(_value(node.value, frame), node.attr)
    elif isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item, frame) for item in node.elts]
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_value(key, frame): _value(item, frame) for key, item in pairs if key is not None}
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _value(node.operand, frame)
        if isinstance(number, (int, float)):
            return -number
    raise NotPlain(ast.unparse(node))


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute that is read without running code of the program."""
    if isinstance(owner, ModuleType) and name not in vars(owner):
        # What a package loads when it is asked for was loaded, since the line that runs has called it.
        return getattr(owner, name) if owner.__name__ in sys.modules else _MISSING
    value = inspect.getattr_static(owner, name, _MISSING)
    if isinstance(value, (classmethod, staticmethod)):
        return getattr(owner, name)
    if value is _MISSING or isinstance(value, property):
        raise NotPlain(name)
    return value
