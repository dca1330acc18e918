"""Torch is taken as released at the end of its import only where nothing else could have written into it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEFORE = """
import builtins, functools, sys, threading, types
from cachesvc_client.graphs.released import birth, in_place
in_place.watch()
birth.watch()
"""
AFTER = """
import torch
from cachesvc_client.graphs.released import comparison
print("taken" if comparison._released._namespaces else "judged")
"""
SITUATIONS = {
    "a thread of the program": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "an unknown finder": (
        "class Finder:\n    def find_spec(self, *_):\n        return None\nsys.meta_path.insert(0, Finder())"
    ),
    "an unknown path hook": (
        "def hook(path):\n    raise ImportError\nhook.__module__ = 'tool'\nsys.path_hooks.insert(0, hook)"
    ),
    "a finder that another package left": "import _pytest.assertion.rewrite as one\n"
    "sys.meta_path.insert(0, one.AssertionRewritingHook.__new__(one.AssertionRewritingHook))\n"
    "one.AssertionRewritingHook.find_spec = lambda *_: None",
    "another import function": (
        "real = builtins.__import__\nbuiltins.__import__ = lambda *one, **two: real(*one, **two)"
    ),
    "a part that is there already": "sys.modules['torch.planted'] = types.ModuleType('torch.planted')",
    "a package of the program's, imported meanwhile": (
        "from cachesvc_client.hooks import imports\n"
        "imports.when_imported('torch.nn', lambda _: __import__('package_of_a_program'))"
    ),
}


def _run(program: str, folder: Path) -> str:
    (folder / "package_of_a_program.py").write_text("")
    (folder / "program.py").write_text(program)
    command = [sys.executable, str(folder / "program.py")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_what_only_torch_wrote_is_taken_and_what_is_replaced_later_is_found(tmp_path: Path) -> None:
    """Every place that is compared: a module, a class, an operator's table and a table of decompositions."""
    program = f"""{BEFORE}{AFTER}
print(len(comparison.changes().described))
torch.nn.functional.silu = torch.nn.functional.relu
torch.nn.Linear.forward = lambda self, x: x
table = torch._decomp.decomposition_table
table[torch.ops.aten.tanh.default] = lambda x: x
torch.ops.aten.tanh.default.py_kernels[torch._C.DispatchKey.CPU] = lambda x: x
for place in sorted(comparison.changes().described):
    print(place)
"""
    assert _run(program, tmp_path).splitlines() == [
        "taken",
        "0",
        "aten.tanh.default.py_kernels[DispatchKey.CPU]",
        "torch._decomp.decomposition_table[aten.tanh.default]",
        "torch.nn.functional.silu",
        "torch.nn.modules.linear.Linear.forward",
    ]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_all_is_judged_where_other_code_could_have_written(situation: str, tmp_path: Path) -> None:
    assert _run(BEFORE + SITUATIONS[situation] + AFTER, tmp_path) == "judged"


def test_a_torch_that_was_there_before_is_judged(tmp_path: Path) -> None:
    assert _run("import torch\n" + BEFORE + AFTER, tmp_path) == "judged"


def test_a_replaced_decorator_of_the_standard_library_is_found(tmp_path: Path) -> None:
    program = f"""{BEFORE}
real = functools.wraps
def wraps(function, *more, **named):
    def decorate(wrapper):
        inner = real(function, *more, **named)(wrapper)
        def of_program(*one, **two):
            return inner(*one, **two)
        return real(function)(of_program)
    return decorate
functools.wraps = wraps
{AFTER}
print(any(place.startswith("torch._decomp") for place in comparison.changes().described))
"""
    assert _run(program, tmp_path).splitlines() == ["taken", "True"]
