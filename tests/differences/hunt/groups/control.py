"""Rows in which nothing differs: without a hit in each of them, a hunt says nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..case import Case

_TRAIN = "def run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.sum().backward()\n    return y.detach(), x.grad\n"
PROGRAMS = {
    "a function": "def program(x):\n    return x.sin() + SALT\n",
    "a function that reads": "D = {'v': 2.0}\nclass A:\n    v = 3.0\nONE = A()\ndef program(x):\n    return x * D['v'] + ONE.v + SALT\n",
    "a module": "torch.manual_seed(0)\nMODEL = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())\ndef program(x):\n    return MODEL(x) + SALT\n",
    "training": "def program(x):\n    return F.softmax(x @ x.t(), -1) + SALT\n" + _TRAIN,
    "a checkpoint": "def body(x):\n    return x.sin().cos()\ndef program(x):\n    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False) + SALT\n" + _TRAIN,
    "an operator": "@torch.library.custom_op('hunt_ROW::op', mutates_args=())\ndef op(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\nop.register_fake(torch.empty_like)\ndef program(x):\n    return op(x) + SALT\n",
    "a graph break": "def program(x):\n    y = x + SALT\n    torch._dynamo.graph_break()\n    return y.sin()\n",
}  # fmt: skip


def of_control(_: random.Random) -> Iterator[Case]:
    """Yield cases in which the change changes nothing."""
    for name, program in PROGRAMS.items():
        yield Case("control", name, program)
