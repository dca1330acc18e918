"""Cases in which a value that a program reads lies in another place: each place at each site."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from ..case import Case
from .holders import HOLDERS

SITES = {
    "function": "def program(x):\n    return x * read() + SALT\n",
    "module": "class Model(nn.Module):\n    def forward(self, x):\n        return x * read() + SALT\ndef make():\n    return Model()\n",
    "nested function": "def program(x):\n    def inner(y):\n        return y * read()\n    return inner(x) + SALT\n",
    "autograd.Function forward": """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * read()
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
def program(x):
    return Own.apply(x) + SALT
""",
    "autograd.Function backward": """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * read()
def program(x):
    return Own.apply(x) + SALT
def run(call):
    x = ramp(4, 8).requires_grad_()
    y = call(x)
    y.sum().backward()
    return y, x.grad
""",
    "checkpoint": "def body(x):\n    return (x * read()).sin()\ndef program(x):\n    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False) + SALT\ndef run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.sum().backward()\n    return y, x.grad\n",
    "nested compile region": "@torch.compiler.nested_compile_region\ndef body(x):\n    return (x * read()).sin()\ndef program(x):\n    return body(x) + SALT\n",
    "cond": "def program(x):\n    return torch.cond(x.sum() > 0, lambda y: y * read(), lambda y: y * read() + 1, (x,)) + SALT\n",
    "vmap": "def program(x):\n    return torch.vmap(lambda y: y * read())(x) + SALT\n",
    "grad": "def program(x):\n    return torch.func.grad(lambda y: (y * y * read()).sum())(x) + SALT\n",
    "decorator": "def decorated(f):\n    @functools.wraps(f)\n    def inner(x):\n        return f(x) * read()\n    return inner\n@decorated\ndef body(x):\n    return x + 1\ndef program(x):\n    return body(x) + SALT\n",
    "after a graph break": "def program(x):\n    y = x + SALT\n    torch._dynamo.graph_break()\n    return y * read()\n",
    "forward hook": "MODEL = nn.Identity()\nMODEL.register_forward_hook(lambda m, a, out: out * read())\ndef program(x):\n    return MODEL(x) + SALT\n",
    "raised": "def fail():\n    raise ValueError(read())\ndef program(x):\n    try:\n        fail()\n    except ValueError as error:\n        return x * error.args[0] + SALT\n",
    "condition": "def program(x):\n    return (x.sin() if read() > 2.5 else x.cos()) + SALT\n",
    "shape": "def program(x):\n    return x.repeat(int(read()), 1) + SALT\n",
    "context manager": "import contextlib\nclass Context:\n    def __enter__(self):\n        return read()\n    def __exit__(self, *a):\n        return False\ndef program(x):\n    with Context() as by:\n        return x * by + SALT\n",
}  # fmt: skip
"""Where traced code calls ``read``."""


class Holder(NamedTuple):
    """Where a value lies: text that defines ``read``, and text that makes the value another one."""

    before: str
    change: str


def of_objects(rng: random.Random) -> Iterator[Case]:
    """Yield a case for each place at several sites: always in a function."""
    for name, (before, change) in HOLDERS.items():
        for site in ["function", *rng.sample(sorted(set(SITES) - {"function"}), 4)]:
            source = f"{before}\n{SITES[site]}def change():\n" + textwrap.indent(change, "    ") + "\n"
            yield Case("objects", f"{name}, in {site}", source)
