"""Test that a digest of code has what the code asks of loggers, locks, modules of libraries and the environment,
and of what says that it is another thing; and that it has no more: it is one digest in other processes."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

import pytest

from cachesvc_client.graphs.code.followed import FollowedCode

CHANGES = {
    # the variable's name is not in the code
    "a variable by a global": ("NAME = 'HUNT'", "os.environ.get(NAME)", "os.environ['HUNT'] = '3'"),
    "a variable by a class": ("class A:\n    n = 'HUNT'", "os.environ.get(A.n)", "os.environ['HUNT'] = '3'"),
    "a variable by a part": ("PART = 'ONE'", "os.getenv('HUNT_' + PART)", "os.environ['HUNT_ONE'] = '3'"),
    "a variable by upper": ("", "os.getenv('hunt'.upper())", "os.environ['HUNT'] = '3'"),
    # what decides nothing, unless code asks for it
    "isEnabledFor": ("LOG = logging.getLogger('hunt')", "LOG.isEnabledFor(10)", "LOG.setLevel(10)"),
    "a parent": ("LOG = logging.getLogger('hunt.a')", "LOG.isEnabledFor(9)", "LOG.parent.setLevel(9)"),
    "is_set": ("E = threading.Event()", "E.is_set()", "E.set()"),
    "locked": ("E = threading.Lock()", "E.locked()", "E.acquire()"),
    "_value": ("E = threading.Semaphore(2)", "E._value", "E.release()"),
    # modules and classes of libraries
    "a number of a module": ("", "math.tau", "math.tau = 3.0"),
    "a function of a module": ("", "math.sqrt(4)", "math.sqrt = lambda _: 3"),
    "another function in C": ("", "math.sqrt(4)", "math.sqrt = math.cbrt"),
    "a class of a module": ("", "fractions.Fraction(2)", "fractions.Fraction = type('Own', (int,), {})"),
    "a method": ("", "fractions.Fraction(2)", "fractions.Fraction.__float__ = lambda _: 3.0"),
    "arguments": ("", "len(sys.argv)", "sys.argv = [*sys.argv, 'one']"),
    "a module's place": (
        "",
        "math.tau",
        "globals()['math'] = types.ModuleType('math'); math.tau = math.v = 2",
    ),
    # texts that look like stacks
    "a stack or none": ("L = []", "1 if L else 2", "L.append(STACK)"),
    "texts": ("L = ['a']", "len(L)", "L.append(STACK)"),
    "tuples": ("L = (STACK,)", "len(L)", "globals()['L'] = (STACK, STACK)"),
    # classes that say that they are others
    "a date": ("class date:\n    v = 2\ndate.__module__ = 'datetime'\nO = date()", "O.v", "date.v = 3"),
    "a logger": ("class Logger:\n    v = 2\nLogger.__module__ = 'logging'\nO = Logger()", "O.v", "O.v = 3"),
    "functools": (
        "class W:\n    v = 2\nW.__module__ = 'functools'\nO = W()\nO.__wrapped__ = 1",
        "O.v",
        "O.v = 3",
    ),
    "a kernel": (
        "class Kernel:\n    v = func = 2\nKernel.__module__ = 'torch._library.utils'\nO = Kernel()",
        "O.v",
        "O.v = 3",
    ),
    # what values have beside their text
    "a tensor's attribute": ("T = torch.ones(1)\nT.by = 2", "T.by", "T.by = 3"),
    "an array's strides": ("N = numpy.ones((2, 2))", "N.strides", "globals()['N'] = numpy.asfortranarray(N)"),
    "a dtype's fields": (
        "N = numpy.dtype([('a', 'f4')])",
        "N.names",
        "globals()['N'] = numpy.dtype([('b', 'f4')])",
    ),
    "a function's name": ("def f(): pass", "(f.__name__, f())", "f.__name__ = 'g'"),
    "annotations": ("def f(a: 2): pass", "f.__annotations__['a']", "f.__annotations__['a'] = 3"),
    "a doc": ("class A: 'ab'", "A.__doc__", "A.__doc__ = 'abc'"),
}
_IMPORTS = "import fractions, logging, math, numpy, os, sys, threading, torch, types\n"
STACK = traceback.format_stack()[0]


@pytest.fixture
def kept() -> Iterator[None]:
    """Put back what a case changes outside of its own module."""
    import fractions
    import math

    before = [(one, dict(vars(one))) for one in (fractions, math)]
    method, variables, arguments = fractions.Fraction.__float__, dict(os.environ), sys.argv
    yield
    for module, names in before:
        vars(module).update(names)
    fractions.Fraction.__float__ = method  # type: ignore[method-assign]
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = arguments


def loaded(before: str, read: str) -> dict[str, Any]:
    module = types.ModuleType("asked_program")
    vars(module)["STACK"] = STACK
    exec(f"{_IMPORTS}{before}\ndef read():\n    return {read}\n", vars(module))
    return vars(module)


def digest(names: dict[str, Any]) -> str:
    followed = FollowedCode([names["read"]])
    assert not followed.unknown
    return followed.digest


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("case", CHANGES)
def test_what_code_asks_for_counts(case: str) -> None:
    before, read, change = CHANGES[case]
    names = loaded(before, read)
    first = digest(names)
    assert digest(loaded(before, read)) == first
    exec(change, names)
    assert digest(names) != first
    others = loaded(before, "[1]")
    other = digest(others)
    with contextlib.suppress(Exception):
        exec(change, others)
    if not case.startswith(("a method", "a variable")):
        assert digest(others) == other  # code that asks for nothing has the digest that it had


@pytest.mark.parametrize(
    "read", ["dict(os.environ)", "[*os.environ]", "os.environ.copy()", "len(os.environ)"]
)
def test_code_that_reads_all_variables_has_no_digest(read: str) -> None:
    followed = FollowedCode([loaded("", read)["read"]])
    assert followed.unknown == "code that reads the whole environment"


@pytest.mark.parametrize("read", ["os.environ['HUNT']", "os.environ.get('HUNT')", "'HUNT' in os.environ"])
def test_code_that_reads_one_variable_has_one(read: str) -> None:
    names = loaded("", read)
    first = digest(names)
    os.environ["ANOTHER"] = "1"
    try:
        assert digest(names) == first
    finally:
        del os.environ["ANOTHER"]


def test_from_where_code_was_called_does_not_count() -> None:
    names = loaded("", "(STACKS, 1)")
    names["STACKS"] = traceback.format_stack()
    first = digest(names)
    names["STACKS"] = traceback.format_stack()[1:]
    assert digest(names) == first
