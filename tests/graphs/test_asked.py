"""Test that a digest of code has what the code asks of loggers, locks, modules of libraries and variables,
and of what says that it is another thing; and that it has no more: it is one digest in other processes."""

from __future__ import annotations

import contextlib
import decimal
import os
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

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
    # how Python and torch reach what code does not read by a name of its module
    "getenv": ("from os import getenv as E", "E('HUNT')", "os.environ['HUNT'] = '3'"),
    "a module's answer": (
        "M = types.ModuleType('M')\nV = [2]\nM.__getattr__ = lambda name: V[0]",
        "M.v",
        "V[0] = 3",
    ),
    "a module of variables": (
        "M = types.ModuleType('M')\nM.os = os\nM.__getattr__ = lambda name: os.environ[name]",
        "M.HUNT",
        "os.environ['HUNT'] = '3'",
    ),
    "a whole number of a class": ("class I(int): pass\nV = I(2)", "V", "globals()['V'] = I(3)"),
    "a text of a class": ("class S(str): pass\nV = S('a')", "V", "globals()['V'] = S('b')"),
    "a float in a tuple": ("class F(float): pass\nV = (F(2),)", "V[0]", "globals()['V'] = (F(3),)"),
    "a member's own": ("class E(enum.IntEnum):\n    A = 1\nE.A.w = 2", "E.A.w", "E.A.w = 3"),
    "what a match reads": (
        "class A:\n    __match_args__ = ('a', 'b')",
        "A",
        "A.__match_args__ = ('b', 'a')",
    ),
    "a pytree": ("class A: pass", "A", "pytree.register_pytree_node(A, lambda a: ([], 0), lambda c, _: A())"),
    "a copy": ("class A: pass", "copy.copy(A)", "copyreg.pickle(A, lambda one: (A, ()))"),
    "a property's class": (
        "class P(property):\n    def __get__(self, *_): return V[0]\nV = [2]\nclass A: w = P()\nONE = A()",
        "ONE.w",
        "V[0] = 3",
    ),
    "a setting of torch": (
        "",
        "torch._dynamo.config.recompile_limit",
        "torch._dynamo.config.recompile_limit = 9",
    ),
    "a limit of Python": ("", "sys.getrecursionlimit()", "sys.setrecursionlimit(5000)"),
    "a module named as torch's": (
        "M = types.ModuleType('torch.asked')\nsys.modules['torch.asked'] = M\nM.v = 2",
        "M.v",
        "M.v = 3",
    ),
    "subclasses": ("class A: pass", "A.__subclasses__()", "KEPT = type('B', (A,), {})"),
    "a sign of nan": ("V = float('nan')", "V", "globals()['V'] = -float('nan')"),
    "autocast's type": (
        "",
        "torch.get_autocast_dtype('cpu')",
        "torch.set_autocast_dtype('cpu', torch.float16)",
    ),
    "autocast on a device": (
        "",
        "torch.is_autocast_enabled('cpu')",
        "torch.set_autocast_enabled('cpu', True)",
    ),
    "a switch of torch's": (
        "",
        "torch.backends.cuda.flash_sdp_enabled()",
        "torch.backends.cuda.enable_flash_sdp(False)",
    ),
    "a switch by its name": (
        "from torch.backends.cuda import math_sdp_enabled as on",
        "on()",
        "torch.backends.cuda.enable_math_sdp(False)",
    ),
    "a doc": ("class A: 'ab'", "A.__doc__", "A.__doc__ = 'abc'"),
}
_IMPORTS = """\
import copy, copyreg, enum, fractions, logging, math, numpy, os, sys, threading, torch, types
import torch._dynamo
from torch.utils import _pytree as pytree
"""
STACK = traceback.format_stack()[0]


@pytest.fixture
def kept() -> Iterator[None]:
    """Put back what a case changes outside of its own module."""
    import fractions
    import math

    before = [(one, dict(vars(one))) for one in (fractions, math)]
    method, variables, arguments = fractions.Fraction.__float__, dict(os.environ), sys.argv
    limit, recompiles = sys.getrecursionlimit(), torch._dynamo.config.recompile_limit
    yield
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_math_sdp(True)
    torch.set_flush_denormal(False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_enabled("cpu", False)
    sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
    decimal.getcontext().prec = decimal.DefaultContext.prec
    for module, names in before:
        vars(module).update(names)
    fractions.Fraction.__float__ = method  # type: ignore[method-assign]
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = arguments
    sys.setrecursionlimit(limit)
    torch._dynamo.config.recompile_limit = recompiles


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


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    "change",
    [
        "sys.set_int_max_str_digits(640)",
        "import decimal; decimal.getcontext().prec = 6",
        "torch.set_flush_denormal(True)",
    ],
)
def test_settings_by_which_python_computes_count(change: str) -> None:
    names = loaded("", "len(str(10 ** 700))")
    first = digest(names)
    exec(change, names)
    assert digest(names) != first


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize(
    "text", ["import asked_other as M; return M.V", "from asked_other import V; return V"]
)
def test_what_code_imports_while_it_runs_counts(
    text: str, is_loaded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the file keeps its size, within one second
    names: dict[str, Any] = {}
    exec(f"def read():\n    {text}\n", names)
    digests = []
    for number in (2.0, 3.0, 2.0):
        (tmp_path / "asked_other.py").write_text(f"V = {number}\n")
        sys.modules.pop("asked_other", None)
        if is_loaded:
            names["read"]()
            assert number == sys.modules["asked_other"].V
        digests.append(digest(names))
    sys.modules.pop("asked_other", None)
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize("value", ["ctypes.c_double(2)", "io.StringIO('2')", "random.Random(2)"])
def test_what_an_object_in_c_holds_has_no_digest(value: str) -> None:
    names = loaded(f"import ctypes, io, random\nV = {value}", "V")
    assert FollowedCode([names["read"]]).unknown.startswith("an object of the type ")


@pytest.mark.parametrize("read", ["os.listdir('.')", "os.path.exists('a')", "os.getcwd()"])
def test_code_that_looks_at_files_has_no_digest(read: str) -> None:
    assert FollowedCode([loaded("", read)["read"]]).unknown.startswith("code that calls ")


@pytest.mark.parametrize(
    ("text", "read"), [("from os import getcwd", "getcwd()"), ("from os.path import exists", "exists('a')")]
)
def test_code_that_imports_such_a_function_by_name_has_none_either(text: str, read: str) -> None:
    assert FollowedCode([loaded(text, read)["read"]]).unknown.startswith("code that calls ")
