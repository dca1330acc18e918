"""Compares the defaults of torch's functions with those in their files."""

from __future__ import annotations

import ast
import bisect
import functools
import re
import types
from collections.abc import Mapping
from typing import Any

from . import known
from .source import source

_HEAD = re.compile(
    r"^[ \t]*(?:async )?def (\w+)\(([^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*)\)", re.MULTILINE
)
"""Matches the head of a function: its name, and its parameters with parentheses two deep."""
_UNKNOWN = object()
"""Stands for a value that names do not tell."""


def are_given(function: types.FunctionType) -> bool:
    """Return whether a function has the defaults of its file. The result of a call is not compared."""
    named, code = function.__kwdefaults__ or {}, function.__code__
    head = _head(code)
    if head is None or not (function.__defaults__ or named or "=" in head):
        return True
    arguments = _arguments(head)
    if arguments is None:
        return True
    by_keyword = {
        one.arg: value
        for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if value is not None
    }
    given, values = [*arguments.defaults, *by_keyword.values()], function.__defaults__ or ()
    if by_keyword.keys() != named.keys() or len(arguments.defaults) != len(values):
        return False
    # A name may be one of the function around, or of the class.
    names = function.__globals__ if "." not in known.name_of(function) else {}
    pairs = zip(given, (*values, *(named[name] for name in by_keyword)), strict=True)
    return all(_is(_value(one, names), value) for one, value in pairs)


def _is(given: Any, value: Any) -> bool:
    if given is _UNKNOWN or given is value:
        return True
    return type(given) is type(value) and repr(given) == repr(value)


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression of constants and names; `_UNKNOWN` for another one."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        value = names.get(node.id, _UNKNOWN)
        return _UNKNOWN if callable(value) else value  # a function's name is that of a loop
    if isinstance(node, ast.Attribute):
        holder = _value(node.value, names)
        return _UNKNOWN if holder is _UNKNOWN else getattr(holder, node.attr, _UNKNOWN)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return _UNKNOWN


@functools.cache
def _arguments(head: str) -> ast.arguments | None:
    try:
        [defined] = ast.parse(f"def _({head}): pass").body
    except (SyntaxError, ValueError):
        return None
    return defined.args if isinstance(defined, ast.FunctionDef) else None


def _head(code: types.CodeType) -> str | None:
    """Return the parameters of a function as its file has them; ``None`` where that is not known."""
    lines, heads = _heads(code.co_filename)
    number = bisect.bisect_left(lines, code.co_firstlineno)  # decorators lie before
    if number == len(lines) or heads[number][0] != code.co_name:
        return None
    return heads[number][1]


@functools.cache
def _heads(file: str) -> tuple[list[int], list[tuple[str, str]]]:
    """Return the lines in which the functions of a file begin, and of each its name and its parameters."""
    lines, heads = [], []
    text, line, place = source(file).text, 1, 0
    for found in _HEAD.finditer(text):
        line += text.count("\n", place, found.start(1))
        place = found.start(1)
        lines.append(line)
        heads.append((found[1], found[2]))
    return lines, heads
