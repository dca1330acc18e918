"""Cases for subclasses of tensors and for modes: what their methods do and read."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator

from ..case import Case
from .holders import HOLDERS

_WRAPPER = """
class Own(torch.Tensor):
    @staticmethod
    def __new__(cls, inner, by=1.0):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)
    def __init__(self, inner, by=1.0):
        self.inner, self.by = inner, by
    def __tensor_flatten__(self):
        return ["inner"], {"by": self.by}
    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Own(inner["inner"], meta["by"])
    def helper(self, value):
        return value
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = torch.utils._pytree.tree_map(lambda a: a.inner if isinstance(a, Own) else a, args)
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.view.default):
            return Own(out)
        return {answer}
"""
_FUNCTION = """
class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if func in (torch.sin, torch.Tensor.sin):
            return {answer}
        return out
"""
KINDS = {
    "__torch_dispatch__": _WRAPPER.replace(
        "{answer}", "out * read() if isinstance(out, torch.Tensor) else out"
    ),
    "__torch_dispatch__, a method": _WRAPPER.replace("{answer}", "cls.by_method(out)")
    + "    @classmethod\n    def by_method(cls, out):\n        return out * read() if isinstance(out, torch.Tensor) else out\n",
    "__tensor_flatten__ metadata": _WRAPPER.replace("{answer}", "out").replace(
        'return ["inner"], {"by": self.by}', 'return ["inner"], {"by": float(read()) * 0 + self.by}'
    ),
    "__torch_function__": _FUNCTION.replace("{answer}", "out * read()"),
    "__torch_function__, a method": _FUNCTION.replace("{answer}", "cls.by_method(out)")
    + "    @classmethod\n    def by_method(cls, out):\n        return out * read()\n",
}
_INNER = "def plain(value):\n    return value.inner if isinstance(value, Own) and hasattr(value, 'inner') else value\ndef made(x):\n    return Own(x) if hasattr(Own, '__tensor_flatten__') else x.as_subclass(Own)\n"
PLACES = {
    "input": "def program(x):\n    return x.sin() + SALT\ndef run(call):\n    return plain(call(made(ramp(4, 8))))\n",
    "weight": "W = nn.Parameter(made(ramp(8, 8)), requires_grad=False)\ndef program(x):\n    return x.mm(W.sin()) + SALT\ndef run(call):\n    return plain(call(ramp(4, 8)))\n",
    "weight of Linear": "MODEL = nn.Linear(8, 8, bias=False)\nMODEL.weight = nn.Parameter(made(ramp(8, 8)), requires_grad=False)\ndef program(x):\n    return MODEL(x).sin() + SALT\ndef run(call):\n    return plain(call(ramp(4, 8)))\n",
    "buffer": "MODEL = nn.Module()\nMODEL.register_buffer('b', made(ramp(4, 8)))\ndef program(x):\n    return x + MODEL.b.sin() + SALT\ndef run(call):\n    return plain(call(ramp(4, 8)))\n",
    "made inside": "def program(x):\n    return plain(made(x).sin()) + SALT\n",
}
_MODES = {
    "TorchFunctionMode": """
class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * read() if func in (torch.sin, torch.Tensor.sin) else out
def program(x):
    return torch.sin(x) + SALT
def run(call):
    with Mode():
        return call(ramp(4, 8))
""",
    "TorchFunctionMode inside": """
class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * read() if func in (torch.sin, torch.Tensor.sin) else out
def program(x):
    with Mode():
        return torch.sin(x) + SALT
""",
    "TorchDispatchMode": """
class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * read() if func is torch.ops.aten.sin.default else out
def program(x):
    return torch.sin(x) + SALT
def run(call):
    with Mode():
        return call(ramp(4, 8))
""",
    "saved_tensors_hooks": """
def program(x):
    return x.sin().cos() + SALT
def run(call):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * read(), lambda t: t):
        x = ramp(4, 8).requires_grad_()
        y = call(x)
        y.sum().backward()
        return y, x.grad
""",
    "saved_tensors_hooks inside": """
def program(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * read(), lambda t: t):
        return x.sin().cos() + SALT
def run(call):
    x = ramp(4, 8).requires_grad_()
    y = call(x)
    y.sum().backward()
    return y, x.grad
""",
    "tensor hook": """
def program(x):
    y = x.sin()
    y.register_hook(lambda g: g * read())
    return y + SALT
def run(call):
    x = ramp(4, 8).requires_grad_()
    call(x).sum().backward()
    return x.grad
""",
    "__torch_function__ of no tensor": """
class Own:
    def __init__(self, t):
        self.t = t
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*[a.t if isinstance(a, Own) else a for a in args], **(kwargs or {})) * read()
ONE = Own(ramp(4, 8))
def program(x):
    return torch.add(x, ONE) + SALT
""",
}


def of_subclasses(rng: random.Random) -> Iterator[Case]:
    """Yield cases for each kind of subclass at each place, and for modes."""
    every = sorted(HOLDERS)
    wanted = ["global", "method", "attribute", "dict of functions", "function replaced"]
    programs = {
        f"{kind} of {place}": text + _INNER + PLACES[place]
        for kind, text in KINDS.items()
        for place in PLACES
    } | _MODES
    for what, text in programs.items():
        for name in dict.fromkeys(["global", *rng.sample(wanted[1:], 1), *rng.sample(every, 2)]):
            before, change = HOLDERS[name]
            source = f"{before}\n{text}\ndef change():\n" + textwrap.indent(change, "    ") + "\n"
            yield Case("subclasses", f"{what} reads {name}", source)
        code = (
            "if CHANGED:\n    def read():\n        return 3.0\nelse:\n    def read():\n        return 2.0\n"
        )
        yield Case("subclasses", f"{what} calls other code", code + text)
        source = "def read():\n    return 2.0\n" + text
        other = text.replace("* read()", "* (read() + 1)").replace("float(read()) * 0", "1.0")
        if other != text:
            both = f"if CHANGED:\n{textwrap.indent(other, '    ')}\nelse:\n{textwrap.indent(text, '    ')}\n"
            yield Case("subclasses", f"{what} is other code", "def read():\n    return 2.0\n" + both)
