"""Cases in which a package of the application has another version in the service: the same names, other code."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..case import Case

VERSIONS: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    # what differs: (files of one version, files of the other, the expression that a program computes)
    "a function": ({"": "def f(x):\n    return x * 2\n"}, {"": "def f(x):\n    return x * 3\n"}, "lib.f(x)"),
    "a constant": ({"": "V = 2.0\ndef f(x):\n    return x * V\n"}, {"": "V = 3.0\ndef f(x):\n    return x * V\n"}, "lib.f(x)"),
    "a constant read outside": ({"": "V = 2.0\n"}, {"": "V = 3.0\n"}, "x * lib.V"),
    "a helper": ({"": "def _h(x):\n    return x * 2\ndef f(x):\n    return _h(x)\n"}, {"": "def _h(x):\n    return x * 3\ndef f(x):\n    return _h(x)\n"}, "lib.f(x)"),
    "a helper in another module": ({"": "from .inner import h\ndef f(x):\n    return h(x)\n", "inner": "def h(x):\n    return x * 2\n"}, {"": "from .inner import h\ndef f(x):\n    return h(x)\n", "inner": "def h(x):\n    return x * 3\n"}, "lib.f(x)"),
    "a helper, imported inside": ({"": "def f(x):\n    from .inner import h\n    return h(x)\n", "inner": "def h(x):\n    return x * 2\n"}, {"": "def f(x):\n    from .inner import h\n    return h(x)\n", "inner": "def h(x):\n    return x * 3\n"}, "lib.f(x)"),
    "a constant in another module": ({"": "from . import inner\ndef f(x):\n    return x * inner.V\n", "inner": "V = 2.0\n"}, {"": "from . import inner\ndef f(x):\n    return x * inner.V\n", "inner": "V = 3.0\n"}, "lib.f(x)"),
    "a re-export": ({"": "from .a import f\n", "a": "def f(x):\n    return x * 2\n", "b": "def f(x):\n    return x * 3\n"}, {"": "from .b import f\n", "a": "def f(x):\n    return x * 2\n", "b": "def f(x):\n    return x * 3\n"}, "lib.f(x)"),
    "a class's method": ({"": "class A:\n    def f(self, x):\n        return x * 2\nONE = A()\n"}, {"": "class A:\n    def f(self, x):\n        return x * 3\nONE = A()\n"}, "lib.ONE.f(x)"),
    "a class's default": ({"": "class A:\n    def __init__(self, by=2.0):\n        self.by = by\n    def f(self, x):\n        return x * self.by\n"}, {"": "class A:\n    def __init__(self, by=3.0):\n        self.by = by\n    def f(self, x):\n        return x * self.by\n"}, "lib.A().f(x)"),
    "a base class": ({"": "class B:\n    def f(self, x):\n        return x * 2\nclass A(B):\n    pass\nONE = A()\n"}, {"": "class B:\n    def f(self, x):\n        return x * 3\nclass A(B):\n    pass\nONE = A()\n"}, "lib.ONE.f(x)"),
    "a module's forward": ({"": "from torch import nn\nclass A(nn.Module):\n    def forward(self, x):\n        return x * 2\nONE = A()\n"}, {"": "from torch import nn\nclass A(nn.Module):\n    def forward(self, x):\n        return x * 3\nONE = A()\n"}, "lib.ONE(x)"),
    "a default argument": ({"": "def f(x, by=2.0):\n    return x * by\n"}, {"": "def f(x, by=3.0):\n    return x * by\n"}, "lib.f(x)"),
    "a decorator": ({"": "def d(f):\n    return lambda x: f(x) * 2\n@d\ndef f(x):\n    return x + 1\n"}, {"": "def d(f):\n    return lambda x: f(x) * 3\n@d\ndef f(x):\n    return x + 1\n"}, "lib.f(x)"),
    "an lru_cache": ({"": "import functools\n@functools.lru_cache\ndef n():\n    return 2.0\ndef f(x):\n    return x * n()\n"}, {"": "import functools\n@functools.lru_cache\ndef n():\n    return 3.0\ndef f(x):\n    return x * n()\n"}, "lib.f(x)"),
    "__version__ alone": ({"": "__version__ = '1'\ndef f(x):\n    return x * (2 if __version__ == '1' else 3)\n"}, {"": "__version__ = '2'\ndef f(x):\n    return x * (2 if __version__ == '1' else 3)\n"}, "lib.f(x)"),
    "a function became a class": ({"": "def f(x):\n    return x * 2\n"}, {"": "class F:\n    def __call__(self, x):\n        return x * 3\nf = F()\n"}, "lib.f(x)"),
    "an enum": ({"": "import enum\nclass E(enum.Enum):\n    A = 2.0\n"}, {"": "import enum\nclass E(enum.Enum):\n    A = 3.0\n"}, "x * lib.E.A.value"),
    "a dataclass's default": ({"": "import dataclasses\n@dataclasses.dataclass\nclass C:\n    by: float = 2.0\nONE = C()\n"}, {"": "import dataclasses\n@dataclasses.dataclass\nclass C:\n    by: float = 3.0\nONE = C()\n"}, "x * lib.ONE.by"),
    "an attribute of an object": ({"": "import types\nONE = types.SimpleNamespace(by=2.0)\n"}, {"": "import types\nONE = types.SimpleNamespace(by=3.0)\n"}, "x * lib.ONE.by"),
    "a data file": ({"": "import pathlib\nV = float((pathlib.Path(__file__).parent / 'inner.py').read_text()[2:])\ndef f(x):\n    return x * V\n", "inner": "# 2.0"}, {"": "import pathlib\nV = float((pathlib.Path(__file__).parent / 'inner.py').read_text()[2:])\ndef f(x):\n    return x * V\n", "inner": "# 3.0"}, "lib.f(x)"),
    "an autograd.Function": ({"": "import torch\nclass Own(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x * 2\n    @staticmethod\n    def backward(ctx, g):\n        return g\n"}, {"": "import torch\nclass Own(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x * 3\n    @staticmethod\n    def backward(ctx, g):\n        return g\n"}, "lib.Own.apply(x)"),
    "an operator": ({"": "import torch\n@torch.library.custom_op('hunt_ROW::op', mutates_args=())\ndef op(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\nop.register_fake(torch.empty_like)\n"}, {"": "import torch\n@torch.library.custom_op('hunt_ROW::op', mutates_args=())\ndef op(x: torch.Tensor) -> torch.Tensor:\n    return x * 3\nop.register_fake(torch.empty_like)\n"}, "lib.op(x)"),
    "a composite operator": ({"": "import torch\nL = torch.library.Library('hunt_ROW', 'DEF')\nL.define('op(Tensor x) -> Tensor')\nL.impl('op', lambda x: x * 2, 'CompositeImplicitAutograd')\n"}, {"": "import torch\nL = torch.library.Library('hunt_ROW', 'DEF')\nL.define('op(Tensor x) -> Tensor')\nL.impl('op', lambda x: x * 3, 'CompositeImplicitAutograd')\n"}, "torch.ops.hunt_ROW.op(x)"),
    "a composite operator's helper": ({"": "import torch\nfrom .inner import h\nL = torch.library.Library('hunt_ROW', 'DEF')\nL.define('op(Tensor x) -> Tensor')\nL.impl('op', lambda x: h(x), 'CompositeImplicitAutograd')\n", "inner": "def h(x):\n    return x * 2\n"}, {"": "import torch\nfrom .inner import h\nL = torch.library.Library('hunt_ROW', 'DEF')\nL.define('op(Tensor x) -> Tensor')\nL.impl('op', lambda x: h(x), 'CompositeImplicitAutograd')\n", "inner": "def h(x):\n    return x * 3\n"}, "torch.ops.hunt_ROW.op(x)"),
    "an operator's backward": ({"": "import torch\n@torch.library.custom_op('hunt_ROW::op', mutates_args=())\ndef op(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\nop.register_fake(torch.empty_like)\nop.register_autograd(lambda ctx, g: g * 2)\n"}, {"": "import torch\n@torch.library.custom_op('hunt_ROW::op', mutates_args=())\ndef op(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\nop.register_fake(torch.empty_like)\nop.register_autograd(lambda ctx, g: g * 3)\n"}, "lib.op(x)"),
    "allow_in_graph": ({"": "import torch._dynamo\n@torch._dynamo.allow_in_graph\ndef f(x):\n    return x * 2\n"}, {"": "import torch._dynamo\n@torch._dynamo.allow_in_graph\ndef f(x):\n    return x * 3\n"}, "lib.f(x)"),
    "allow_in_graph's helper": ({"": "import torch._dynamo\nfrom .inner import h\n@torch._dynamo.allow_in_graph\ndef f(x):\n    return h(x)\n", "inner": "def h(x):\n    return x * 2\n"}, {"": "import torch._dynamo\nfrom .inner import h\n@torch._dynamo.allow_in_graph\ndef f(x):\n    return h(x)\n", "inner": "def h(x):\n    return x * 3\n"}, "lib.f(x)"),
    "a patch of PyTorch": ({"": "from torch.nn import functional\ndef f(x):\n    return functional.silu(x)\n"}, {"": "import torch\nfrom torch.nn import functional\nfunctional.silu = lambda x: x * torch.sigmoid(x) * 3\ndef f(x):\n    return functional.silu(x)\n"}, "lib.f(x)"),
    "a patch of Tensor": ({"": "def f(x):\n    return x.sin()\n"}, {"": "import torch\ntorch.Tensor.sin = torch.Tensor.cos\ndef f(x):\n    return x.sin()\n"}, "lib.f(x)"),
    "a subclass": ({"": "import torch\nclass S(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, f, t, a=(), k=None):\n        return super().__torch_function__(f, t, a, k or {}) * 2 if f is torch.sin else super().__torch_function__(f, t, a, k or {})\n"}, {"": "import torch\nclass S(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, f, t, a=(), k=None):\n        return super().__torch_function__(f, t, a, k or {}) * 3 if f is torch.sin else super().__torch_function__(f, t, a, k or {})\n"}, "torch.sin(x.as_subclass(lib.S))"),
    "code moved, the same numbers": ({"": "def f(x):\n    return x * 2\n"}, {"": "# moved\n\ndef f(x):\n    return x * 2\n"}, "lib.f(x)"),
}  # fmt: skip
FORMS = {
    "function": "def program(x):\n    return {call} + SALT\n",
    "module": "class Model(nn.Module):\n    def forward(self, x):\n        return {call} + SALT\ndef make():\n    return Model()\n",
    "training": "def program(x):\n    return {call} + SALT\ndef run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.sum().backward()\n    return y.detach() * 1, x.grad\n",
    "checkpoint": "def body(x):\n    return ({call}).cos()\ndef program(x):\n    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False) + SALT\n",
    "region": "@torch.compiler.nested_compile_region\ndef body(x):\n    return ({call}).cos()\ndef program(x):\n    return body(x) + SALT\n",
    "compiled by the library": "from ROWlib import late\ndef program(x):\n    return {call} + SALT\n",
}  # fmt: skip


def of_libraries(_: random.Random) -> Iterator[Case]:
    """Yield cases for each change of a library and several programs."""
    for what, (one, other, call) in VERSIONS.items():
        for form in ("function", "module", "training", "checkpoint", "region"):
            files = {
                f"ROW_v{number}/ROWlib/{name or '__init__'}.py": text
                for number, version in ((1, one), (2, other))
                for name, text in version.items()
            }
            source = 'kit.library(__file__, "ROW")\nimport ROWlib as lib\n' + FORMS[form].replace(
                "{call}", call
            )
            yield Case("libraries", f"{what}, {form}", source, files=files)
