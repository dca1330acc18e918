"""Describes the variables of the environment that code below Dynamo reads."""

from __future__ import annotations

import dis
import os
import re
import types
from collections.abc import Collection, Iterator, Sequence, Set
from typing import Any

from ..released import known
from .instructions import arguments
from .reading import codes_in, names_in
from .values import Undescribed

ENVIRONMENT = frozenset(("environ", "getenv", "environb"))
"""Names with which code reads variables of the environment."""
_ALL_VARIABLES = frozenset(("items", "keys", "values", "copy"))
_TAKES_ALL = ("GET_ITER", "CALL", "PRECALL", "DICT_UPDATE", "DICT_MERGE", "LIST_EXTEND")
"""How the names of instructions begin that use all of the object before them."""
_GETS = frozenset(("get", "getenv", "pop", "setdefault", "__getitem__", "__contains__"))
_LOADS = ("LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "LOAD_ATTR", "COPY_FREE_VARS")
_MAKES = frozenset(("upper", "format", "join", "strip"))
"""Methods that make the name of a variable out of texts that stand in the code."""
_ENDS = ("STORE_", "RETURN", "POP_TOP", "CONTAINS_OP", "IS_OP")
_OF_NAMES = re.compile(r"%[a-z]|\{[^}]*\}|[^A-Za-z0-9_]")


def reads_environment(value: Any, code: types.CodeType) -> bool:
    """Return whether code that reads a value reads variables of the environment."""
    if value is os:
        return not ENVIRONMENT.isdisjoint(names_in(code))
    return _is_environment(value) or (getter(value) is not None and holds_environment(value))


def _is_environment(value: Any) -> bool:
    return any(value is one for one in (os, os.environ, os.getenv, getattr(os, "environb", os)))


def getter(value: Any) -> Any:
    """Return the function by which a program's module answers for names that it does not have."""
    is_module = isinstance(value, types.ModuleType) and not known.is_library(value)
    return vars(value).get("__getattr__") if is_module else None


def holds_environment(module: types.ModuleType) -> bool:
    """Return whether a module reads the environment, such as that of vLLM's settings: its function for
    hundreds of variables would be code of each operator, and so a variable's name alone counts."""
    return any(map(_is_environment, vars(module).values()))


def variables(texts: Set[str], parts: Collection[str], names: Set[str]) -> Iterator[str]:
    """Yield ``name=value`` for each variable of the environment that one of these texts names, or whose name
    begins or ends with one of ``parts``. Code with these ``names`` may make large letters of a text."""
    wanted = texts | ({one.upper() for one in texts} if "upper" in names else set())
    for name, value in sorted(os.environ.items()):
        if name in wanted or any(name.startswith(one) or name.endswith(one) for one in parts):
            yield f"environment {name}={value}"


def parts_of_variables(code: types.CodeType, name: str, value: Any) -> Iterator[str]:
    """Yield the texts in code out of which it may make the name of a variable: those that begin or end with
    ``_``, and those of which it makes one where it reads the environment.

    ``name``, ``value``: by what the code reads it. Raises `Undescribed` with the reason where it makes a name
    of other things.
    """
    reads = ENVIRONMENT if isinstance(value, types.ModuleType) else ENVIRONMENT | {name}
    for one in codes_in(code):
        for text in one.co_consts:
            if isinstance(text, str) and len(text) > 2 and text.isidentifier() and "_" in (text[0], text[-1]):
                yield text
        steps = list(dis.get_instructions(one))
        for number, step in enumerate(steps):
            if step.argval in reads and step.opname.startswith("LOAD_"):
                is_called = step.argval == "getenv" or (step.argval == name and value is os.getenv)
                yield from _made(_key(steps, number + 1, is_called))


def _key(steps: Sequence[dis.Instruction], start: int, is_called: bool) -> Sequence[dis.Instruction]:
    """Return the instructions that make the name of the variable which code reads of the environment."""
    if not is_called and steps[start].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        if steps[start].argval not in _GETS:
            return ()
        is_called, start = True, start + 1
    if is_called:
        given = arguments(steps, start)
        return (given[0] if given else ()) if given is not None else steps[start : start + 1]
    end = next((at for at in range(start, len(steps)) if "SUBSCR" in steps[at].opname), start)
    key = steps[start:end]
    return () if any(one.opname.startswith(_ENDS) or "JUMP" in one.opname for one in key) else key


def _made(steps: Sequence[dis.Instruction]) -> Iterator[str]:
    steps = [one for one in steps if one.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL")]
    if all(one.opname.startswith(_LOADS) for one in steps):
        return
    methods = {one.argval for one in steps if one.opname in ("LOAD_METHOD", "LOAD_ATTR")}
    texts = [one.argval for one in steps if isinstance(one.argval, str) and one.opname == "LOAD_CONST"]
    found = [part for text in texts for part in _OF_NAMES.sub(" ", text).split() if len(part) > 1]
    if "upper" in methods and len(methods) == 1 and not found:
        return
    is_cut = any("SUBSCR" in one.opname or "SLICE" in one.opname for one in steps)
    if is_cut or not found or not methods <= _MAKES:
        raise Undescribed("a variable of the environment whose name is made of other things")
    yield from found
    if "upper" in methods:
        yield from (one.upper() for one in found)


def reads_all_variables(code: types.CodeType) -> bool:
    """Return whether code goes through the whole environment."""
    is_environment = False
    for step in dis.get_instructions(code):
        if is_environment and (step.opname.startswith(_TAKES_ALL) or step.argval in _ALL_VARIABLES):
            return True
        is_environment = step.argval in ENVIRONMENT and step.argval != "getenv"
    return any(isinstance(one, types.CodeType) and reads_all_variables(one) for one in code.co_consts)
