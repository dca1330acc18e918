"""Cases in which a method of a class of ``torch.nn``, or a function that it calls, is replaced."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Iterator
from typing import Any

from .. import samples
from ..case import Case
from .patched import REPLACEMENTS, patch

_CALLS = re.compile(r"\b(F|torch)\.(\w+)\(")
_METHODS = re.compile(r"\bself\.(_\w+)\(")


def _text(compiled: str) -> str:
    return (
        "SAMPLE = kit.saved(__file__)\n"
        "MODEL, ARGUMENTS, NAMED = SAMPLE\n"
        "KIND = type(MODEL)\n"
        "def inputs():\n    return (torch.ones(2), *ARGUMENTS)\n" + compiled
    )


FUNCTION = "def program(salt, *args):\n    return MODEL(*args, **NAMED), torch.clamp_min(salt, SALT)\n"
MODULE = """
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = MODEL
    def forward(self, salt, *args):
        return self.inner(*args, **NAMED), torch.clamp_min(salt, SALT)
def make():
    return Outer()
"""
_OWN = (
    "OLD = KIND.{name}\ndef replacement(self, *args, **kwargs):\n"
    "    return kit.shifted(OLD(self, *args, **kwargs))\n"
    "def change():\n    KIND.{name} = replacement\n"
)
FORWARDS = (
    _OWN.replace("{name}", "forward"),
    _OWN.replace("{name}", "__call__"),
    _OWN.replace("{name}", "_call_impl"),
    "def change():\n    KIND.forward = kit.wrapped(KIND.forward)\n",
    "def change():\n    KIND.__call__ = kit.wrapped(KIND.__call__)\n",
    "def change():\n    KIND._call_impl = kit.wrapped(KIND._call_impl)\n",
    "def change():\n    MODEL.forward = kit.wrapped(MODEL.forward)\n",
    "def change():\n    old = KIND.forward\n    def forward(self, *a, **k):\n        return kit.shifted(old(self, *a, **k))\n    KIND.forward = forward\n",
)
WHAT = (
    *("forward, own function", "__call__, own function", "_call_impl, own function"),
    *("forward", "__call__", "_call_impl", "instance's forward", "forward, a method"),
)


def _samples() -> Iterator[tuple[str, Any]]:
    seen = set()
    for info in samples.modules():
        name = info.module_cls.__name__
        if name not in seen and (sample := samples.of_module(info)) is not None:
            seen.add(name)
            yield name, sample


def of_forward(rng: random.Random) -> Iterator[Case]:
    """Yield cases for ``forward`` and ``__call__`` of every class of ``torch.nn``."""
    for name, sample in _samples():
        for number in (0, *rng.sample(range(1, len(FORWARDS)), 2)):
            place = rng.choice((FUNCTION, MODULE))
            where = "compiled module" if place is MODULE else "function"
            source = _text(place) + FORWARDS[number]
            what = WHAT[number]
            yield Case("patched nn forward", f"nn.{name}: {what}, {where}", source, saved=sample)
    shared = {
        "nn.Module.__call__, own function": "nn.Module.__call__ = replacement",
        "Sequential.forward, own function": "nn.Sequential.forward = kit.double_first",
        "Linear.forward, own function": "nn.Linear.forward = kit.double_first",
        "ReLU.forward, own function": "nn.ReLU.forward = kit.double_first",
        "nn.Module.__call__": "nn.Module.__call__ = kit.wrapped(nn.Module.__call__)",
        "nn.Module._call_impl": "nn.Module._call_impl = kit.wrapped(nn.Module._call_impl)",
        "nn.Module.__getattr__": "old = nn.Module.__getattr__\n    nn.Module.__getattr__ = lambda self, n: old(self, n) * 2 if n == 'weight' else old(self, n)",
        "Sequential.forward": "nn.Sequential.forward = kit.wrapped(nn.Sequential.forward)",
        "Sequential.__iter__": "nn.Sequential.__iter__ = lambda self: iter(list(self._modules.values())[::-1])",
        "ModuleList.__getitem__": "nn.ModuleList.__getitem__ = lambda self, i: list(self._modules.values())[-1]",
        "Linear.forward with F.gelu": "old = nn.Linear.forward\n    nn.Linear.forward = lambda self, x: F.gelu(old(self, x))",
    }  # fmt: skip
    model = "torch.manual_seed(0)\nLIST = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])\nMODEL = nn.Sequential(*LIST, nn.ReLU())\n"
    for what, change in shared.items():
        for call in ("MODEL(x) + SALT", "LIST[0](x) + SALT"):
            own = "OLD = nn.Module.__call__\ndef replacement(self, *a):\n    return OLD(self, *a) * 2\n"
            source = f"{model}{own}def program(x):\n    return {call}\ndef change():\n    {change}\n"
            yield Case("patched nn forward", f"{what}: {call}", source)


def of_functions_below(rng: random.Random) -> Iterator[Case]:
    """Yield cases in which what the forward of a class of ``torch.nn`` calls is replaced."""
    for name, sample in _samples():
        kind = type(sample[0])
        source = inspect.getsource(kind.forward)
        for holder, called in sorted(set(_CALLS.findall(source))):
            if called.startswith(("is_", "jit", "_assert")) or called.endswith("Error"):
                continue
            text = _text(rng.choice((FUNCTION, MODULE))) + patch(holder, called, rng.choice(REPLACEMENTS[:4]))
            yield Case("patched nn below", f"nn.{name}: {holder}.{called}", text, saved=sample)
        for method in sorted(set(_METHODS.findall(source))):
            if callable(getattr(kind, method, None)):
                text = _text(FUNCTION) + f"def change():\n    KIND.{method} = kit.wrapped(KIND.{method})\n"
                yield Case("patched nn below", f"nn.{name}.{method}", text, saved=sample)
