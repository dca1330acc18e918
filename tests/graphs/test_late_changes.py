"""What a program takes away from torch, and which data of torch it replaces, before an attach and after it.

What torch had is known by its sources where the attach is late.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_TORCH = """
import types
import torch
from torch.nn import functional as F
import torch._inductor.compile_fx
import torch._refs.nn.functional
from torch._inductor import decomposition, lowering
from torch._inductor.fx_passes import joint_graph, post_grad
aten = torch.ops.aten
def inner(function):
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
"""
_ATTACH = """
from cachesvc_client.graphs.released import birth, comparison, in_place
in_place.watch()
birth.watch()
"""
_TRY = f"""
import json, os, sys
ATTACH = {_ATTACH!r}
def answer(change):
    reads, writes = os.pipe()
    if os.fork() == 0:
        try:
            exec(change, globals())
            exec(ATTACH, globals())
            said = str(comparison.changes())
        except Exception as error:
            said = f"{{type(error).__name__}}: {{error}}"
        os.write(writes, said.encode()[:60_000])
        os._exit(0)
    os.close(writes)
    with open(reads) as file:
        said = file.read()
    os.wait()
    return said
print(json.dumps({{change: answer(change) for change in json.loads(sys.stdin.read())}}))
"""
REMOVED = {
    "a lowering": ("del lowering.lowerings[aten.cat.default]", "lowerings[aten.cat.default]"),
    "a lowering by a loop over names": ("lowering.lowerings.pop(aten.tanh.default)", "lowerings[aten.tanh"),
    "a fallback": ("del lowering.lowerings[aten.histc.default]", "lowerings[aten.histc.default]"),
    "a decomposition": ("del torch._decomp.decomposition_table[aten.mse_loss.default]", "[aten.mse_loss"),
    "a reference": ("del torch._decomp.decomposition_table[aten.erf.default]", "[aten.erf.default]"),
    "Inductor's own": ("del decomposition.decompositions[aten.angle.default]", "[aten.angle.default]"),
    "one of Inductor's": ("decomposition.decompositions.pop(aten.gelu.default)", "[aten.gelu.default]"),
    "a core one": ("decomposition.decompositions.pop(aten.addr.default)", "[aten.addr.default]"),
    "a meta function": ("del torch._decomp.meta_table[aten.mm.default]", "meta_table[aten.mm.default]"),
    "a kernel": ("aten.dropout.default.py_kernels.clear()", "aten.dropout.default.py_kernels"),
    "the handlers of patterns": ("post_grad.pass_patterns[2].patterns.clear()", "the handler of a pattern"),
    "a pass": (
        "post_grad.pass_patterns[2] = torch._inductor.pattern_matcher.PatternMatcherPass()",
        "the handler of a pattern",
    ),
    "replacements": (
        "post_grad.lazy_init(); post_grad.pass_patterns[1].patterns.clear()",
        "replacements",
    ),
}
CHANGED = {
    "a whole number": ("F.softmax.__defaults__ = (0, 3, None)", "functional.softmax"),
    "nothing for a default": ("F.elu.__defaults__ = None", "functional.elu"),
    "a truth value": ("inner(torch.Tensor.split).__defaults__ = (1,)", "Tensor.split"),
    "a keyword": ("inner(F.max_pool2d_with_indices).__kwdefaults__ = {'a': 1}", "max_pool2d"),
    "a function in a closure": (
        "w = torch._refs.nn.functional.mish\n"
        "cells = [one for one in w.__closure__ if callable(one.cell_contents)]\n"
        "cells[0].cell_contents = torch._refs.nn.functional.softplus\n",
        "mish",
    ),
    "a function in the closure of a decomposition": (
        "w = torch._decomp.decompositions.mse_loss\n"
        "cells = [one for one in w.__closure__ if callable(one.cell_contents)]\n"
        "cells[0].cell_contents = torch._decomp.decompositions.hardsigmoid\n",
        "mse_loss",
    ),
    "constants of a lowering": (
        "f = inner(lowering.lowerings[aten.glu.default])\n"
        "f.__code__ = f.__code__.replace(co_consts=(*f.__code__.co_consts, 1.5))\n",
        "other code or defaults than its file",
    ),
}
_MODULE = "F._Reduction = types.ModuleType('torch.nn._reduction'); F._Reduction.get_enum = int\n"
_FAKES = "from torch._subclasses import fake_impls as f\n"
DATA = {
    "another module": (_MODULE, "torch.nn.functional._Reduction"),
    "a module of torch's under another's name": (
        "torch.nn.modules.activation.F = torch._refs.nn.functional",
        "torch.nn.modules.activation.F",
    ),
    "an object in the place of a class": (
        "torch._decomp.decompositions.Reduction = types.SimpleNamespace()",
        "torch._decomp.decompositions.Reduction",
    ),
    "a fake implementation": (
        f"{_FAKES}f.op_implementations_dict[aten.sin.default] = lambda *a: None",
        "op_implementations_dict[aten.sin.default]",
    ),
    "a check of fake implementations": (
        f"{_FAKES}f.op_implementations_checks.insert(0, (lambda f: True, lambda *a: None))",
        "op_implementations_checks[0]",
    ),
}
LATER = {
    "a table": ("F.GRID_SAMPLE_PADDING_MODES = {}", "torch.nn.functional.GRID_SAMPLE_PADDING_MODES"),
    "a number": ("torch.pi = 3.5", "torch.pi"),
    "a number of a class": (
        "from torch._inductor.codegen.cpp import CppScheduling as c; c.MAX_FUSED_KERNEL_ARGS_NUM = 1",
        "CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM",
    ),
    "a module's stand-in": ("F._Reduction = types.SimpleNamespace()", "torch.nn.functional._Reduction"),
    "a removed kernel": ("aten.dropout.default.py_kernels.clear()", "aten.dropout.default.py_kernels"),
    "another table of kernels": (
        "aten.sin.default.py_kernels = {torch._C.DispatchKey.CPU: lambda x: x}",
        "aten.sin.default.py_kernels[DispatchKey.CPU]",
    ),
}
"""What is found only where the attach was before it: an object's own sources do not say it."""
NONE = {
    "nothing": "",
    "the replacements that Inductor registers": "joint_graph.lazy_init(); post_grad.lazy_init()",
    "a compile": "torch.compile(lambda x: torch.sin(x) @ x.t())(torch.ones(4, 4))",
}


TOGETHER = [
    change for what, (change, _) in {**REMOVED, **DATA}.items() if "pattern" not in what and what != "a pass"
]
"""Changes that are each a place of their own in the answer, so that one child makes them all."""


@pytest.fixture(scope="module", params=["late", "early"])
def answers(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return what a process finds that attaches after each change, or before it was there; each is a child of
    one that has torch."""
    rows = {**REMOVED, **DATA, **(CHANGED if request.param == "late" else LATER)}
    alone = [change for change, _ in rows.values() if change not in TOGETHER]
    program = _TORCH + _TRY if request.param == "late" else f"{_ATTACH}{_TORCH}comparison.changes()\n{_TRY}"
    command = [sys.executable, "-c", program]
    asked = json.dumps(["\n".join(TOGETHER), *alone, *NONE.values()])
    ran = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    together, *found = json.loads(ran.stdout).values()
    return {**dict.fromkeys(TOGETHER, together), **dict(zip([*alone, *NONE.values()], found, strict=True))}


@pytest.mark.parametrize("what", [*REMOVED, *DATA, *CHANGED, *LATER])
def test_what_a_program_changed_is_named(what: str, answers: dict[str, str]) -> None:
    change, name = {**REMOVED, **DATA, **CHANGED, **LATER}[what]
    if change in answers:
        assert answers[change].startswith("Changes(") and name in answers[change], answers[change]


@pytest.mark.parametrize("what", NONE)
def test_torch_as_released_has_no_change(what: str, answers: dict[str, str]) -> None:
    assert answers[NONE[what]] == "Changes(described={}, unknown='')"
