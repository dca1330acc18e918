"""Cases in which an implementation of one of PyTorch's operators is replaced in the dispatcher."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..case import Case

OPERATORS = {
    # operator: (how a program calls it, arguments of a kernel, what the kernel returns)
    "sin": ("x.sin()", "x", "x.cos()"),
    "tanh": ("x.tanh()", "x", "x.atan()"),
    "relu": ("x.relu()", "x", "x.abs()"),
    "sigmoid": ("x.sigmoid()", "x", "x.cos()"),
    "gelu": ("F.gelu(x)", "x, *, approximate='none'", "x.cos()"),
    "silu": ("F.silu(x)", "x", "x.cos()"),
    "neg": ("-x", "x", "x.cos()"),
    "add.Tensor": ("x.add(x.cos())", "x, y, *, alpha=1", "x.sub(y)"),
    "mul.Tensor": ("x.mul(x.cos())", "x, y", "x.sub(y)"),
    "mm": ("x.mm(x.t())", "x, y", "x.matmul(y.add(1)) if False else x[:, :4].sub(y[:4, :4])"),
    "sum.dim_IntList": ("x.sum(0)", "x, dim, keepdim=False, *, dtype=None", "x.mean(dim, keepdim)"),
    "mean": ("x.mean()", "x, *, dtype=None", "x.amax()"),
    "cumsum": ("x.cumsum(0)", "x, dim, *, dtype=None", "x.cumprod(dim)"),
    "softmax.int": ("x.softmax(-1)", "x, dim, dtype=None", "x.cos()"),
    "_softmax": ("x.softmax(-1)", "x, dim, half", "x.cos()"),
    "linear": ("F.linear(x, x)", "x, w, b=None", "x.mm(w.t()).cos()"),
    "matmul": ("x @ x.t()", "x, y", "x.mm(y).cos()"),
    "square": ("x.square()", "x", "x.cos()"),
    "layer_norm": ("F.layer_norm(x, (8,))", "x, shape, w=None, b=None, eps=1e-5, cudnn=True", "x.cos()"),
    "native_layer_norm": ("F.layer_norm(x, (8,))", "x, shape, w, b, eps", "(x.cos(), x[:, :1], x[:, :1])"),
    "embedding": ("F.embedding(torch.tensor([1, 2]), x)", "w, i, pad=-1, scale=False, sparse=False", "w.index_select(0, i).cos()"),
    "relu6": ("F.relu6(x)", "x", "x.cos()"),
    "einsum": ("torch.einsum('ij,kj->ik', x, x)", "eq, xs, *, path=None", "xs[0].mm(xs[1].t()).cos()"),
    "clamp_min": ("x.clamp_min(0.1)", "x, m", "x.clamp_max(m)"),
    "pow.Tensor_Scalar": ("x ** 2", "x, n", "x.cos()"),
    "outer": ("x[0].outer(x[1])", "x, y", "x.unsqueeze(1).sub(y)"),
    "silu_backward": ("F.silu(x)", "g, x", "g.mul(7)"),
    "tanh_backward": ("x.tanh()", "g, x", "g.mul(7)"),
}  # fmt: skip
KEYS = (
    "CPU", "AutogradCPU", "Autograd", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "Meta",
    "ADInplaceOrView", "Functionalize", "AutocastCPU", "FuncTorchBatched", "Python", "BackendSelect",
)  # fmt: skip
_BELOW = {
    "AutogradCPU": "torch._C._AutoDispatchBelowAutograd()",
    "Autograd": "torch._C._AutoDispatchBelowAutograd()",
    "AutocastCPU": "torch.autocast('cpu', enabled=False)",
}
PROGRAMS = {
    "": "def program(x):\n    return {call} + SALT\n",
    " in training": "def program(x):\n    return {call} + SALT\ndef run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.sum().backward()\n    return y, x.grad\n",
    " in a subgraph": "def program(x):\n    return torch.cond(x.sum() > 0, lambda x: {call}, lambda x: {call} + 1, (x,)) + SALT\n",
    " in a checkpoint": "def body(x):\n    return {call}\ndef program(x):\n    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False) + SALT\ndef run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.sum().backward()\n    return y, x.grad\n",
}  # fmt: skip


def of_dispatcher(rng: random.Random) -> Iterator[Case]:
    """Yield cases for each operator and some of the dispatch keys."""
    for operator, (call, arguments, answer) in OPERATORS.items():
        always = ["CPU", "AutogradCPU", "CompositeImplicitAutograd"]
        for key in [*always, *rng.sample([one for one in KEYS if one not in always], 3)]:
            below = _BELOW.get(key, "kit.contextlib.nullcontext()")
            change = (
                "LIBRARY = torch.library.Library('aten', 'IMPL')\n"
                f"def kernel({arguments}):\n    with {below}:\n        return {answer}\n"
                f"def change():\n    LIBRARY.impl({operator!r}, kernel, {key!r})\n"
            )
            backward = operator.endswith("_backward")
            where = " in training" if backward else rng.choice(["", *PROGRAMS])
            source = PROGRAMS[where].replace("{call}", call) + change
            if key == "AutocastCPU":
                source += "def run(call):\n    with torch.autocast('cpu'):\n        return call(ramp(4, 8))\n"
            yield Case("dispatcher", f"aten::{operator} for {key}{where}", source)
    yield from _below_python(rng)


def _below_python(rng: random.Random) -> Iterator[Case]:
    """Yield cases for the Python side of the dispatcher: fake kernels, decompositions and modes."""
    changes = {
        "py_impl of CompositeImplicitAutograd": "torch.ops.aten.{op}.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(lambda x: x.cos())",
        "py_impl of Autograd": "torch.ops.aten.{op}.py_impl(torch._C.DispatchKey.Autograd)(lambda x: x.cos())",
        "py_impl of AutogradCPU": "torch.ops.aten.{op}.py_impl(torch._C.DispatchKey.AutogradCPU)(lambda x: x.cos())",
        "py_impl of CPU": "torch.ops.aten.{op}.py_impl(torch._C.DispatchKey.CPU)(lambda x: x.cos())",
        "py_impl of Meta": "torch.ops.aten.{op}.py_impl(torch._C.DispatchKey.Meta)(lambda x: x.double())",
        "decomposition_table": "torch._decomp.decomposition_table[torch.ops.aten.{op}] = lambda x: x.cos()",
        "meta_table": "torch._decomp.meta_table[torch.ops.aten.{op}] = lambda x: x.double()",
        "global_decomposition_table": "torch._decomp.global_decomposition_table['post_autograd'][torch.ops.aten.{op}] = lambda x: x.cos()",
        "OpOverload.__call__": "type(torch.ops.aten.{op}).hunt = 1; old = type(torch.ops.aten.{op}).__call__; type(torch.ops.aten.{op}).__call__ = lambda self, *a, **k: old(torch.ops.aten.cos.default, *a, **k) if self is torch.ops.aten.{op} else old(self, *a, **k)",
    }
    for what, change in changes.items():
        for operator in rng.sample(
            ("sin.default", "tanh.default", "sigmoid.default", "silu.default", "relu.default"), 3
        ):
            call = f"torch.ops.aten.{operator.partition('.')[0]}(x)"
            source = PROGRAMS[rng.choice(["", " in training"])].replace("{call}", call)
            source += f"def change():\n    {change.replace('{op}', operator)}\n"
            yield Case("dispatcher", f"{what} of aten.{operator}", source)
