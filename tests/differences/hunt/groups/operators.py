"""Cases for operators of a program: each part of one, and what the part reads."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator

from ..case import Case
from .holders import HOLDERS

_OP = """
@torch.library.custom_op("hunt_ROW::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * {body}
@op.register_fake
def fake(x):
    return torch.empty_like(x)
"""
_TRAIN = "def run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.sum().backward()\n    return y, x.grad\n"
_CALL = "def program(x):\n    return op(x) + SALT\n"
PARTS = {
    "body": _OP.replace("{body}", "read()") + _CALL,
    "backward": _OP.replace("{body}", "1")
    + "op.register_autograd(lambda ctx, grad: grad * read())\n"
    + _CALL
    + _TRAIN,
    "setup_context": _OP.replace("{body}", "1")
    + "def setup(ctx, inputs, output):\n    ctx.by = read()\nop.register_autograd(lambda ctx, grad: grad * ctx.by, setup_context=setup)\n"
    + _CALL
    + _TRAIN,
    "vmap": _OP.replace("{body}", "1")
    + "@op.register_vmap\ndef vmap(info, dims, x):\n    return x * read(), dims[0]\ndef program(x):\n    return torch.vmap(op)(x) + SALT\n",
    "fake": """
@torch.library.custom_op("hunt_ROW::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(int(read()), 3)
@op.register_fake
def fake(x):
    return x.new_empty(int(read()), 3)
def program(x):
    y = op(x)
    return torch.ones(y.shape) * y.shape[0] + SALT
""",
    "composite": """
LIBRARY = torch.library.Library("hunt_ROW", "DEF")
LIBRARY.define("op(Tensor x) -> Tensor")
def op(x):
    return x * read()
LIBRARY.impl("op", op, "CompositeImplicitAutograd")
def program(x):
    return torch.ops.hunt_ROW.op(x) + SALT
""",
    "explicit composite": """
LIBRARY = torch.library.Library("hunt_ROW", "DEF")
LIBRARY.define("op(Tensor x) -> Tensor")
def op(x):
    return x * read()
LIBRARY.impl("op", op, "CompositeExplicitAutograd")
LIBRARY.impl("op", lambda x: torch.empty_like(x), "Meta")
def program(x):
    return torch.ops.hunt_ROW.op(x) + SALT
""",
    "autograd key": """
LIBRARY = torch.library.Library("hunt_ROW", "DEF")
LIBRARY.define("op(Tensor x) -> Tensor")
LIBRARY.impl("op", lambda x: x.clone(), "CPU")
LIBRARY.impl("op", lambda x: torch.empty_like(x), "Meta")
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.hunt_ROW.op(x)
    @staticmethod
    def backward(ctx, grad):
        return grad * read()
LIBRARY.impl("op", lambda x: Own.apply(x), "AutogradCPU")
def program(x):
    return torch.ops.hunt_ROW.op(x) + SALT
"""
    + _TRAIN,
    "triton_op": """
@torch.library.triton_op("hunt_ROW::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * read()
"""
    + _CALL,
    "autocast": _OP.replace("{body}", "1.25")
    + "op.register_autocast('cpu', torch.bfloat16 if read() == 2.0 else torch.float32)\ndef program(x):\n    return op(x * 1.001) + SALT\ndef run(call):\n    with torch.autocast('cpu'):\n        return call(ramp(4, 8))\n",
    "torch_dispatch rule": _OP.replace("{body}", "1")
    + """
class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
@op.register_torch_dispatch(Mode)
def rule(mode, func, types, args, kwargs):
    return args[0] * read()
def program(x):
    return op(x) + SALT
def run(call):
    with Mode():
        return call(ramp(4, 8))
""",
    "torch_dispatch rule of a subclass": _OP.replace("{body}", "1")
    + """
from torch.testing._internal.two_tensor import TwoTensor
@op.register_torch_dispatch(TwoTensor)
def rule(cls, func, types, args, kwargs):
    return TwoTensor(args[0].a * read(), args[0].b * read())
def program(x):
    return op(x) * SALT
def run(call):
    out = call(TwoTensor(ramp(4, 8), ramp(4, 8)))
    return out.a, out.b
""",
}
DECLARED = {
    "schema": """
LIBRARY = torch.library.Library("hunt_ROW", "DEF")
WRITES = read() == 3.0
LIBRARY.define("op(Tensor%s x) -> Tensor" % ("(a!)" if WRITES else ""))
def op(x):
    if WRITES:
        x.add_(10)
    return x.clone()
LIBRARY.impl("op", op, "CPU")
LIBRARY.impl("op", lambda x: torch.empty_like(x), "Meta")
def program(x):
    y = x.cos()
    z = torch.ops.hunt_ROW.op(y)
    return z + SALT, y * 3
""",
}
"""What is decided when an operator is defined."""


def of_operators(rng: random.Random) -> Iterator[Case]:
    """Yield cases for each part of an operator: the part reads from several places."""
    every = sorted(HOLDERS)
    wanted = ["global", "method", "dict of functions", "list of functions", "partial", "attribute", "closure"]
    wanted += [
        "torch function under a name",
        "torch function in a dict",
        "default argument",
        "property",
        "class attribute",
    ]
    for part, text in PARTS.items():
        for name in dict.fromkeys([*wanted, *rng.sample(every, 12)]):
            before, change = HOLDERS[name]
            source = f"{before}\n{text}\ndef change():\n" + textwrap.indent(change, "    ") + "\n"
            yield Case("operators", f"{part} reads {name}", source)
    for part, text in {**PARTS, **DECLARED}.items():
        source = f"def read():\n    return 3.0 if CHANGED else 2.0\n{text}"
        yield Case("operators", f"{part} asks", source)
        source = f"if CHANGED:\n    def read():\n        return 3.0\nelse:\n    def read():\n        return 2.0\n{text}"
        yield Case("operators", f"{part} is other code", source)
