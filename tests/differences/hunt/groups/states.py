"""Cases for memory that inputs share, state that changes between calls, and training."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..case import Case

_MUTATING = {
    "x.add_(y)": "def program(x, y):\n    x.add_(y)\n    return x * y + SALT\n",
    "x.mul_(2) and y": "def program(x, y):\n    x.mul_(2)\n    return x + y + SALT\n",
    "two writes": "def program(x, y):\n    x.add_(1)\n    y.mul_(3)\n    return x - y + SALT\n",
    "write by index": "def program(x, y):\n    x[0] = 7.0\n    return x * 2 + y + SALT\n",
    "returns an input": "def program(x, y):\n    return x, y + SALT\n",
    "returns a view": "def program(x, y):\n    return x[1:], (x + y).t() + SALT\n",
    "detach and write": "def program(x, y):\n    z = x.detach()\n    z.add_(1)\n    return x + y + SALT\n",
    "x is y": "def program(x, y):\n    return x * (2 if x is y else 3) + SALT\n",
    "set_": "def program(x, y):\n    with torch.no_grad():\n        x.copy_(y + 1)\n    return x + y + SALT\n",
}  # fmt: skip
_INPUTS = {
    "one tensor twice": "a = ramp(4, 4)\n    return (a, a)",
    "views of one": "a = ramp(8, 4)\n    return (a[:4], a[:4])",
    "views that overlap": "a = ramp(8, 4)\n    return (a[:4], a[2:6])",
    "views that do not overlap": "a = ramp(8, 4)\n    return (a[:4], a[4:])",
    "a view and its base": "a = ramp(4, 4)\n    return (a, a.view(16).view(4, 4))",
    "transposed view": "a = ramp(4, 4)\n    return (a, a.t())",
    "expanded": "return (ramp(4, 4), ramp(1, 4).expand(4, 4))",
    "not contiguous": "return (ramp(4, 4), ramp(4, 8)[:, ::2])",
    "another offset": "return (ramp(4, 4), ramp(5, 4)[1:])",
    "another dtype": "return (ramp(4, 4).double(), ramp(4, 4).double())",
    "another size": "return (ramp(6, 4), ramp(6, 4))",
    "a size of 1": "return (ramp(1, 4), ramp(1, 4))",
    "parameters": "return (nn.Parameter(ramp(4, 4), requires_grad=False), ramp(4, 4))",
    "a subclass": "return (ramp(4, 4).as_subclass(type('Sub', (torch.Tensor,), {})), ramp(4, 4))",
    "inference tensors": "with torch.inference_mode():\n        return (ramp(4, 4), ramp(4, 4))",
    "a channels-last layout": "return (ramp(4, 4).t().contiguous().t(), ramp(4, 4))",
    "a number": "return (ramp(4, 4), 3.0)",
    "a 0-dim tensor": "return (ramp(4, 4), torch.tensor(3.0))",
    "the other order": "return (ramp(4, 4) + 2, ramp(4, 4))",
    "detached": "return (ramp(4, 4).requires_grad_().detach(), ramp(4, 4))",
    "conjugated": "a = torch.complex(ramp(4, 4), ramp(4, 4)).conj()\n    return (a, a)",
}  # fmt: skip
_TIED = "torch.manual_seed(0)\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)\n        self.k, self.by = 1, 2.0\n        self.register_buffer('count', torch.zeros(()))\n    def forward(self, x):\n        self.count.add_(1)\n        return self.b(self.a(x).relu()) * self.by * self.k + self.count + SALT\nMODEL = Model()\n"
_CHANGES = {
    "tied parameters": "MODEL.b.weight = MODEL.a.weight",
    "tied modules": "MODEL.b = MODEL.a",
    "frozen weight": "MODEL.a.weight.requires_grad_(False)",
    "all frozen": "MODEL.requires_grad_(False)",
    "no bias": "MODEL.a.bias = None",
    "another weight": "MODEL.a.weight.data.mul_(3)",
    "another attribute": "MODEL.by = 3.0",
    "buffer's value": "MODEL.count.fill_(5)",
    "not persistent buffer": "MODEL.register_buffer('count', torch.zeros(()), persistent=False)",
    "eval": "MODEL.eval()",
    "hook": "MODEL.a.register_forward_hook(lambda m, a, out: out * 3)",
    "backward hook": "MODEL.a.register_full_backward_hook(lambda m, i, o: (i[0] * 3,) if i[0] is not None else None)",
    "tensor hook": "MODEL.a.weight.register_hook(lambda g: g * 3)",
    "post accumulate hook": "MODEL.a.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3))",
    "global forward hook": "nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)",
    "global forward pre-hook": "nn.modules.module.register_module_forward_pre_hook(lambda m, a: (a[0] * 2,))",
    "parametrization": "nn.utils.parametrize.register_parametrization(MODEL.a, 'weight', type('Twice', (nn.Module,), {'forward': lambda self, w: w * 2})())",
    "weight norm": "nn.utils.parametrizations.weight_norm(MODEL.a)",
    "pruned": "import torch.nn.utils.prune as prune\n    prune.l1_unstructured(MODEL.a, 'weight', 0.5)",
    "double": "MODEL.double().float(); MODEL.by = 2.5",
    "replaced submodule": "MODEL.a = nn.Sequential(MODEL.a, nn.Tanh())",
    "grad mode": "torch.set_grad_enabled(False)",
    "inference mode": "kit.MODE = torch.inference_mode(); kit.MODE.__enter__()",
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "autocast": "kit.MODE = torch.autocast('cpu', torch.bfloat16); kit.MODE.__enter__()",
    "anomaly mode": "torch.autograd.set_detect_anomaly(True)",
}  # fmt: skip
_RUNS = {
    "inference": "def run(call):\n    with torch.no_grad():\n        return call(ramp(4, 8))\n",
    "two calls": "def run(call):\n    return call(ramp(4, 8)).detach(), call(ramp(4, 8)).detach()\n",
    "changed between calls": "def run(call):\n    a = call(ramp(4, 8)).detach()\n    MODEL.by = MODEL.by + 1\n    MODEL.k = 3\n    return a, call(ramp(4, 8)).detach()\n",
    "backward": "def run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    if y.requires_grad:\n        y.sum().backward()\n    return y.detach(), x.grad, *[p.grad for p in MODEL.parameters()]\n",
    "SGD": "def run(call):\n    o = torch.optim.SGD(MODEL.parameters(), lr=0.1, momentum=0.9)\n    out = []\n    for _ in range(2):\n        o.zero_grad()\n        y = call(ramp(4, 8))\n        y.square().mean().backward()\n        o.step()\n        out.append(y.detach())\n    return out, [p.detach() for p in MODEL.parameters()]\n",
    "Adam": "def run(call):\n    o = torch.optim.Adam(MODEL.parameters(), lr=0.1)\n    out = []\n    for _ in range(2):\n        o.zero_grad()\n        y = call(ramp(4, 8))\n        y.square().mean().backward()\n        o.step()\n        out.append(y.detach())\n    return out, [p.detach() for p in MODEL.parameters()]\n",
    "double backward": "def run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    g, = torch.autograd.grad(y.sum(), x)\n    return y.detach(), g\n",
}  # fmt: skip
_COMPILED = {
    "function": "def program(x):\n    return MODEL(x)\n",
    "module": "def make():\n    return MODEL\n",
}
_STEPS = {
    "learning rate": "o = torch.optim.SGD([W], lr=0.5 if CHANGED else 0.1)",
    "momentum": "o = torch.optim.SGD([W], lr=0.1, momentum=0.9 if CHANGED else 0.1)",
    "weight decay": "o = torch.optim.AdamW([W], lr=0.1, weight_decay=0.5 if CHANGED else 0.1)",
    "betas": "o = torch.optim.Adam([W], lr=0.1, betas=(0.5, 0.9) if CHANGED else (0.9, 0.99))",
    "foreach": "o = torch.optim.Adam([W], lr=0.1, foreach=not CHANGED)",
    "maximize": "o = torch.optim.SGD([W], lr=0.1, maximize=CHANGED)",
    "another optimizer": "o = (torch.optim.Adagrad if CHANGED else torch.optim.RMSprop)([W], lr=0.1)",
    "lr as a tensor": "o = torch.optim.Adam([W], lr=torch.tensor(0.5 if CHANGED else 0.1), foreach=False, capturable=False)",
}  # fmt: skip

_FACTS = {
    "is_leaf": ("x.is_leaf", "ramp(4, 8).requires_grad_()", "ramp(4, 8).requires_grad_() * 1"),
    "grad_fn": ("x.grad_fn is None", "ramp(4, 8).requires_grad_()", "ramp(4, 8).requires_grad_() * 1"),
    "_base": ("x._base is None", "ramp(4, 8)", "ramp(5, 8)[:4]"),
    "grad": ("x.grad is None", "ramp(4, 8).requires_grad_()", "with_grad()"),
    "is_inference()": ("not x.is_inference()", "ramp(4, 8)", "torch.inference_mode()(ramp)(4, 8)"),
    "an attribute": ("not hasattr(x, 'by')", "ramp(4, 8)", "with_attribute()"),
}  # fmt: skip
"""What a program asks of a tensor: with this one the answer is yes, and with that one no."""
_FACT = """\
def with_grad():
    x = ramp(4, 8).requires_grad_()
    x.grad = ramp(4, 8)
    return x
def with_attribute():
    x = ramp(4, 8)
    x.by = 1
    return x
def run(call):
    y = call(other() if CHANGED else one())
    if y.requires_grad:
        y.sum().backward()
    return y
"""
_HELD = """\
import torch._dynamo.config as settings
if hasattr(settings, "install_free_tensors"):
    settings.install_free_tensors = True
W = ramp(8) * (3.0 if CHANGED else 2.0)
def program(x):
    return x * W + SALT
"""


def of_states(rng: random.Random) -> Iterator[Case]:
    """Yield cases of shared memory, of models in training, and of compiled steps of optimizers."""
    for what, program in _MUTATING.items():
        for inputs, text in _INPUTS.items():
            # What was written into the inputs is a part of the answer.
            run = "def run(call):\n    args = inputs()\n    return call(*args), [a + 0 for a in args]\n"
            source = f"{program}def inputs():\n    if CHANGED:\n        return changed()\n    return ramp(4, 4), ramp(4, 4) + 1\n"
            source += f"def changed():\n    {text}\n{run}"
            yield Case("states", f"{what} of {inputs}", source)
    for what, change in _CHANGES.items():
        for run in rng.sample(sorted(_RUNS), 3):
            form = rng.choice(sorted(_COMPILED))
            source = f"{_TIED}{_COMPILED[form]}{_RUNS[run]}def change():\n    {change}\n"
            yield Case("states", f"{what}, {run}, {form}", source)
    for what, text in _STEPS.items():
        source = f"W = nn.Parameter(ramp(4, 8))\n{text}\ndef make():\n    def step():\n        o.step()\n        return W.detach() + SALT\n    return step\ndef run(call):\n    W.grad = ramp(4, 8) + 1\n    return call() * 1, W.detach() * 1\n"
        yield Case("states", f"optimizer: {what}", source)
    for what, (asked, one, other) in _FACTS.items():
        program = f"def program(x):\n    return x * (2.0 if {asked} else 3.0) + SALT\n"
        made = f"one, other = lambda: {one}, lambda: {other}\n"
        yield Case("states", f"a tensor's {what}", program + made + _FACT)
    yield Case("states", "a weight that the graph holds", _HELD)
