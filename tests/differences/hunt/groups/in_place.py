"""Cases in which a program changes a function of PyTorch in place: the object under the name is the old one."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..case import Case

_INNER = """
def inner(function):
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
"""
_CONSTANTS = """
def with_other_constants(function):
    code = function.__code__
    other = tuple(one * 3 if type(one) is float else one for one in code.co_consts)
    function.__code__ = code.replace(co_consts=other) if other != code.co_consts else (
        lambda *args, **kwargs: torch.full((4, 8), 7.0)).__code__
"""
DEFAULTS = {
    "F.leaky_relu": ("F.leaky_relu(x)", "(0.5, False)"),
    "F.elu": ("F.elu(x)", "(3.0, False)"),
    "F.celu": ("F.celu(x)", "(3.0, False)"),
    "F.hardtanh": ("F.hardtanh(x * 9)", "(-4.0, 4.0, False)"),
    "F.normalize": ("F.normalize(x)", "(1.0, 0, 1e-12, None)"),
    "F.layer_norm": ("F.layer_norm(x, (8,))", "(None, None, 1.0)"),
    "F.group_norm": ("F.group_norm(x, 2)", "(None, None, 1.0)"),
    "F.mse_loss": ("F.mse_loss(x, x * 3)", "(None, None, 'sum', None)"),
    "F.smooth_l1_loss": ("F.smooth_l1_loss(x, x * 3)", "(None, None, 'sum', 1.0)"),
    "F.softmax": ("F.softmax(x)", "(0, 3, None)"),
    "F.pad": ("F.pad(x, (1, 1))", "('constant', 9.0)"),
    "F.threshold": ("F.threshold(x, 0.1, 2.0)", "(True,)"),
    "torch.Tensor.norm": ("x.norm()", "(1, None, False, None)"),
    "torch.Tensor.split": ("x.split(2)[1].sum()", "(1,)"),
    "torch.norm": ("torch.norm(x)", "(1, None, False, None, None)"),
    "torch.einsum": ("torch.einsum('ij->ji', x)", "(1,)"),
}
CODES = {
    "F.leaky_relu": "F.leaky_relu(x)",
    "F.normalize": "F.normalize(x)",
    "F.mse_loss": "F.mse_loss(x, x * 3)",
    "F.relu": "F.relu(x)",
    "F.silu": "F.silu(x)",
    "nn.LeakyReLU.forward": "MODEL(x)",
    "torch.Tensor.norm": "x.norm()",
    "torch.Tensor.__rsub__": "2.5 - x",
    "torch.Tensor.__rpow__": "2.5 ** x",
    "torch._refs.nn.functional.softplus": "F.softplus(x)",
    "torch._refs.nn.functional.mish": "F.mish(x)",
    "torch._refs.logaddexp": "torch.logaddexp(x, x * 2)",
    "torch._decomp.decompositions.native_group_norm": "F.group_norm(x, 2)",
    "torch._decomp.decompositions.mse_loss": "F.mse_loss(x, x * 3)",
    "torch._decomp.decompositions.hardsigmoid": "F.hardsigmoid(x)",
    "torch._decomp.decompositions.rrelu_with_noise": "F.rrelu(x)",
    "torch._inductor.decomposition.angle": "torch.angle(x)",
    "torch._inductor.decomposition.round_dec": "torch.round(x * 3, decimals=1)",
}
LOWERED = {
    "torch._inductor.lowering.to_dtype": ("x.to(torch.float64).to(torch.float32)", "code"),
    "torch._inductor.lowering.lowerings[torch.ops.aten.tanh.default]": ("torch.tanh(x)", "closure"),
    "torch._inductor.lowering.lowerings[torch.ops.aten.sin.default]": ("torch.sin(x)", "closure"),
    "torch._inductor.codegen.cpp.CppVecOverrides.tanh": ("torch.tanh(x)", "code"),
    "torch._inductor.codegen.cpp.CppOverrides.tanh": ("torch.tanh(x)", "code"),
}
_CLOSURE = """
def change():
    function = {place}
    other = torch._inductor.lowering.lowerings[torch.ops.aten.cos.default]
    while function is not None:
        pairs = zip(function.__closure__ or (), other.__closure__ or ())
        for cell, by in pairs:
            cell.cell_contents = by.cell_contents
        function, other = getattr(function, "__wrapped__", None), getattr(other, "__wrapped__", None)
"""


HELD = {
    "F.max_pool2d": "F.max_pool2d(x[None], 2)",
    "F.adaptive_max_pool1d": "F.adaptive_max_pool1d(x, 2)",
    "torch.Tensor.__rpow__": "2.5 ** x",
    "torch.Tensor.__rsub__": "2.5 - x",
    "torch.Tensor.__floordiv__": "x // 0.3",
    "torch._refs.nn.functional.softplus": "F.softplus(x)",
    "torch._refs.nn.functional.mish": "F.mish(x)",
    "torch._refs.logaddexp": "torch.logaddexp(x, x * 2)",
    "torch._decomp.decompositions.mse_loss": "F.mse_loss(x, x * 3)",
    "torch._decomp.decompositions.hardsigmoid": "F.hardsigmoid(x)",
    "torch._inductor.decomposition.round_dec": "torch.round(x * 3, decimals=1)",
}
_HELD = """
def other(*args, **kwargs):
    return torch.full((4, 8), 7.0)

def change():
    function = getattr({place}, "__func__", {place})
    changed = 0
    while function is not None:
        for cell in function.__closure__ or ():
            if callable(cell.cell_contents) and not isinstance(cell.cell_contents, type):
                cell.cell_contents = other
                changed += 1
        function = getattr(function, "__wrapped__", None)
    assert changed
"""


def of_changes_in_place(_: random.Random) -> Iterator[Case]:
    """Yield cases for defaults, code, constants and closures of torch's functions."""
    group = "in place"
    for place, (call, defaults) in DEFAULTS.items():
        source = f"def program(x):\n    return {call} + SALT\n{_INNER}"
        source += f"def change():\n    inner({place}).__defaults__ = {defaults}\n"
        yield Case(group, f"{place}.__defaults__", source)
    for place, call in CODES.items():
        program = f"MODEL = nn.LeakyReLU()\ndef program(x):\n    return {call} + SALT\n{_INNER}"
        program += (
            "import torch._refs.nn.functional, torch._decomp.decompositions, torch._inductor.decomposition\n"
        )
        own = "def own(*args, **kwargs):\n    return torch.full((4, 8), 7.0)\n"
        change = f"def change():\n    inner({place}).__code__ = own.__code__\n"
        yield Case(group, f"{place}.__code__", program + own + change)
        change = f"def change():\n    with_other_constants(inner({place}))\n"
        yield Case(group, f"constants of {place}.__code__", program + _CONSTANTS + change)
    for place, call in HELD.items():
        program = f"import torch._refs.nn.functional, torch._inductor.decomposition\ndef program(x):\n    return {call} + SALT\n"
        yield Case(group, f"closure of {place}", program + _HELD.format(place=place))
    for place, (call, kind) in LOWERED.items():
        program = f"import torch._inductor.lowering, torch._inductor.codegen.cpp\ndef program(x):\n    return {call} + SALT\n"
        own = f"{_INNER}def own(x, *args, **kwargs):\n    return x\n"
        change = f"def change():\n    inner({place}).__code__ = own.__code__\n"
        change = _CLOSURE.format(place=place) if kind == "closure" else own + change
        yield Case(group, f"{kind} of {place}", program + change, lowered=True)
