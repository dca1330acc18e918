"""Reads from the instructions of code what it does with a value: which names it makes while it runs."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Sequence
from itertools import pairwise

from .reading import codes_in

_NAMES = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "LOAD_CLASSDEREF")
"""Names of the instructions that load what stands under a name outside of a function."""
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_METHOD")
_BY_NAME = frozenset(("getattr", "hasattr", "attrgetter", "methodcaller"))
_OF_TWO = ("getattr", "hasattr")
"""Functions that read an attribute whose name is an argument, and at which place it is: the last of two."""
_WHOLE = frozenset(("vars", "dir", "__dict__", "__getattribute__", "getmembers", "getattr_static"))
"""Names with which code reads attributes of anything by names that it makes."""


def is_name(step: dis.Instruction) -> bool:
    """Return whether an instruction loads what stands under a name outside of a function."""
    return step.opname in _NAMES and isinstance(step.argval, str)


def arguments(steps: Sequence[dis.Instruction], start: int) -> list[list[dis.Instruction]] | None:
    """Return the instructions of each argument of the call whose function the instruction before ``start``
    loads; ``None`` where that is not known, such as for arguments with branches."""
    depths, depth = [], 0
    for number in range(start, len(steps)):
        step = steps[number]
        if step.opname == "PUSH_NULL" and not depth:
            depths.append(0)
            continue
        if "JUMP" in step.opname or step.opname in ("FOR_ITER", "CALL_FUNCTION_EX"):
            return None
        if step.opname in _CALLS and depth - step.opname.endswith("_KW") == step.arg:
            return [_argument(steps[start:number], depths, one) for one in range(step.arg)]
        depth += _effect(step)
        depths.append(depth)
        if depth < 0:
            return None
    return None


def _effect(step: dis.Instruction) -> int:
    """Return by how much an instruction changes the stack. Python 3.11 counts a call in two halves."""
    if step.opname == "PRECALL":
        return 0
    if step.opname == "CALL":
        return -1 - (step.arg or 0)
    return dis.stack_effect(step.opcode, step.arg if step.opcode >= dis.HAVE_ARGUMENT else None)


def _argument(steps: Sequence[dis.Instruction], depths: list[int], number: int) -> list[dis.Instruction]:
    first = max((at + 1 for at, depth in enumerate(depths) if depth == number), default=0)
    last = max((at + 1 for at, depth in enumerate(depths) if depth == number + 1), default=len(depths))
    return [one for one in steps[first:last] if one.opname not in ("PRECALL", "KW_NAMES", "PUSH_NULL")]


@functools.lru_cache(maxsize=4096)
def makes_names(code: types.CodeType) -> tuple[str, ...]:
    """Return from what code reads attributes whose names it makes while it runs: the names of its module
    under which that stands, and an empty text for anything else."""
    found: dict[str, None] = {}
    for one in codes_in(code):
        if (_BY_NAME | _WHOLE).isdisjoint(one.co_names):
            continue
        steps = list(dis.get_instructions(one))
        for number, step in enumerate(steps):
            if step.argval in _WHOLE:
                of = arguments(steps, number + 1) if is_name(step) else [steps[number - 1 : number]]
                read = of[0][0] if of and len(of[0]) == 1 else None
                found[read.argval if read is not None and is_name(read) else ""] = None
            if step.argval not in _BY_NAME:
                continue
            given = arguments(steps, number + 1)
            if given is None or not given:
                found[""] = None
            elif not _is_constant(given[1 if step.argval in _OF_TWO and len(given) > 1 else 0]):
                read = given[0][0] if step.argval in _OF_TWO and len(given[0]) == 1 else None
                found[read.argval if read is not None and is_name(read) else ""] = None
    return tuple(found)


def makes_packages(code: types.CodeType) -> bool:
    """Return whether code asks for a package, or for a module, by a name that it makes."""
    for one in codes_in(code):
        if _OF_PACKAGES.isdisjoint(one.co_names):
            continue
        steps = list(dis.get_instructions(one))
        for number, step in enumerate(steps):
            if step.argval in _OF_PACKAGES and step.opname.startswith("LOAD_"):
                is_of_it = steps[number + 1].opname in ("LOAD_ATTR", "LOAD_METHOD")
                given = None if is_of_it else arguments(steps, number + 1)
                if given and any(not item.opname.startswith("LOAD_") for item in given[0]):
                    return True
    return False


_OF_PACKAGES = frozenset(("version", "find_spec"))


def _is_constant(steps: Sequence[dis.Instruction]) -> bool:
    return len(steps) == 1 and steps[0].opname.startswith("LOAD_CONST")


def tests_alone(code: types.CodeType, name: str) -> bool:
    """Return whether code does no more with the attributes of a name than to test what is in them."""
    for one in codes_in(code):
        if name not in one.co_names:
            continue
        for step, after in pairwise(dis.get_instructions(one)):
            if step.argval == name and step.opname != "STORE_ATTR" and after.opname != "CONTAINS_OP":
                return False
    return True
