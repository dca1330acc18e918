"""Cases for functions that Dynamo puts into a graph without a trace, at each place where a graph holds one."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator

from ..case import Case
from .holders import HOLDERS

_TRAIN = "def run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.sum().backward()\n    return y, x.grad\n"
ALLOWED = {
    "allow_in_graph": "@torch._dynamo.allow_in_graph\ndef body(x):\n    return x.sin() * read()\n",
    "allow_in_graph, a call inside": "def inner(x):\n    return x.sin() * read()\n@torch._dynamo.allow_in_graph\ndef body(x):\n    return inner(x)\n",
    "allow_in_graph of a lambda": "body = torch._dynamo.allow_in_graph(lambda x: x.sin() * read())\n",
    "nonstrict_trace": "@torch._dynamo.nonstrict_trace\ndef body(x):\n    return x.sin() * read()\n",
    "torch.compiler.allow_in_graph": "@torch.compiler.allow_in_graph\ndef body(x):\n    return x.sin() * read()\n",
    "allow_in_graph of an autograd.Function": "class Own(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x.sin() * read()\n    @staticmethod\n    def backward(ctx, g):\n        return g * read()\ntorch._dynamo.allow_in_graph(Own)\ndef body(x):\n    return Own.apply(x)\n",
    "assume_constant_result": "@torch._dynamo.assume_constant_result\ndef number():\n    return read()\ndef body(x):\n    return x.sin() * number()\n",
    "disable": "@torch._dynamo.disable\ndef number():\n    return read()\ndef body(x):\n    return x.sin() * number()\n",
    "substitute_in_graph": "import operator\ndef original():\n    return read()\ndef body(x):\n    return x.sin() * original()\n",
    "wrap of torch.fx": "torch.fx.wrap('body')\ndef body(x):\n    return x.sin() * read()\n",
    "a plain function": "def body(x):\n    return x.sin() * read()\n",
}  # fmt: skip
PLACES = {
    "plain": "def program(x):\n    return body(x) + SALT\n",
    "plain, training": "def program(x):\n    return body(x) + SALT\n" + _TRAIN,
    "checkpoint": "def program(x):\n    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False) + SALT\n" + _TRAIN,
    "checkpoint of a function": "def outer(x):\n    return body(x).cos()\ndef program(x):\n    return torch.utils.checkpoint.checkpoint(outer, x, use_reentrant=False) + SALT\n" + _TRAIN,
    "nested compile region": "@torch.compiler.nested_compile_region\ndef region(x):\n    return body(x).cos()\ndef program(x):\n    return region(x) + region(x + 1) + SALT\n",
    "nested compile region, training": "@torch.compiler.nested_compile_region\ndef region(x):\n    return body(x).cos()\ndef program(x):\n    return region(x) + SALT\n" + _TRAIN,
    "cond": "def program(x):\n    return torch.cond(x.sum() > 0, lambda y: body(y), lambda y: body(y) + 1, (x,)) + SALT\n",
    "while_loop": "from torch._higher_order_ops.while_loop import while_loop\ndef program(x):\n    return while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, body(y)), (torch.tensor(0), x))[1] + SALT\n",
    "map": "from torch._higher_order_ops.map import map as hop_map\ndef program(x):\n    return hop_map(lambda y: body(y), x) + SALT\n",
    "vmap": "def program(x):\n    return torch.vmap(body)(x) + SALT\n",
    "autograd.Function": "class Outer(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return body(x)\n    @staticmethod\n    def backward(ctx, g):\n        return body(g)\ndef program(x):\n    return Outer.apply(x) + SALT\n" + _TRAIN,
    "a module's forward": "class Model(nn.Module):\n    def forward(self, x):\n        return body(x) + SALT\ndef make():\n    return Model()\n",
    "checkpoint in a region": "@torch.compiler.nested_compile_region\ndef region(x):\n    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False).cos()\ndef program(x):\n    return region(x) + SALT\n" + _TRAIN,
    "flex_attention": "from torch.nn.attention.flex_attention import flex_attention\ndef program(x):\n    q = x.reshape(1, 1, 4, 8)\n    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: body(s)) + SALT\n",
}  # fmt: skip
_C_FUNCTIONS = (
    "torch._C._nn.gelu",
    "torch._C._VariableFunctions.sin",
    "torch._C._nn.silu",
    "torch.cos",
    "torch.relu",
)


def of_nested(rng: random.Random) -> Iterator[Case]:
    """Yield cases for each way of allowing a function and each place."""
    every = sorted(HOLDERS)
    wanted = ("global", "attribute", "method", "function replaced", "closure")
    for way, body in ALLOWED.items():
        for place, program in PLACES.items():
            for name in dict.fromkeys([rng.choice(wanted), rng.choice(every)]):
                before, change = HOLDERS[name]
                source = f"{before}\n{body}{program}def change():\n" + textwrap.indent(change, "    ") + "\n"
                yield Case("nested", f"{way} in {place} reads {name}", source)
            other = body.replace("* read()", "* (read() + 1)").replace("return read()", "return read() + 1")
            both = f"if CHANGED:\n{textwrap.indent(other, '    ')}else:\n{textwrap.indent(body, '    ')}"
            source = f"def read():\n    return 2.0\n{both}{program}"
            yield Case("nested", f"{way} in {place} is other code", source)
    for place, program in PLACES.items():
        one, other = rng.sample(_C_FUNCTIONS, 2)
        source = f"FN = {other} if CHANGED else {one}\nbody = torch._dynamo.allow_in_graph(FN)\n{program}"
        yield Case("nested", f"C function allowed in {place}: {one} or {other}", source)
        source = f"import math\nFN = math.sin if CHANGED else math.cos\ndef body(x):\n    return x * FN(1.0)\n{program}"
        yield Case("nested", f"C function called in {place}", source)
