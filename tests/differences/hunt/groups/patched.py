"""Cases in which a program or a library replaces a function of PyTorch by another one."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Iterator
from typing import Any

import torch

from .. import samples
from ..case import Case

OWN = "a function of the module"
"""A replacement that is no closure: as most libraries do it, and with nothing but its place to tell it."""
REPLACEMENTS = (
    OWN,
    "kit.wrapped({old})",
    "kit.doubled({old})",
    "kit.Replacement({old})",
    "functools.wraps({old})(kit.wrapped({old}))",
    "(lambda old: lambda *a, **k: kit.shifted(old(*a, **k)))({old})",
    "functools.partial(kit.wrapped({old}))",
)
SWAPS = ("sin", "cos", "tanh", "sigmoid", "exp", "neg", "abs", "square", "atan", "erf")
"""Functions of one tensor that stand for each other."""
_CALLS = re.compile(r"\b(torch(?:\._C(?:\._nn)?)?|_VF|torch\._VF)\.(\w+)\(")


def patch(holder: str, name: str, replacement: str) -> str:
    """Return the text of a change that replaces a function."""
    if replacement == OWN:
        return (
            f"OLD = {holder}.{name}\ndef replacement(*args, **kwargs):\n"
            "    return kit.shifted(OLD(*args, **kwargs))\n"
            f"def change():\n    swap({holder}, {name!r}, replacement)\n"
        )
    new = replacement.format(old=f"{holder}.{name}")
    return f"def change():\n    swap({holder}, {name!r}, {new})\n"


def _program(call: str) -> str:
    return (
        "SAMPLE = kit.saved(__file__)\n"
        "NAMED = SAMPLE[1]\n"
        "def inputs():\n    return (torch.ones(2), *SAMPLE[0])\n"
        f"def program(salt, *args):\n    return {call}, torch.clamp_min(salt, SALT)\n"
    )


def _cases(group: str, holder: str, name: str, info: Any, call: str, rng: random.Random) -> Iterator[Case]:
    chosen = samples.of_operator(info, rng, 2)
    forms = [OWN, rng.choice(REPLACEMENTS[1:])][: len(chosen)]
    for number, (form, argument) in enumerate(zip(forms, chosen, strict=True)):
        kind = form.replace("{old}", "").replace("kit.", "")[:28]
        source = _program(call) + patch(holder, name, form)
        yield Case(group, f"{holder}.{name} is {kind} #{number}", source, saved=argument)


def of_functional(rng: random.Random) -> Iterator[Case]:
    """Yield cases for every public function of ``torch.nn.functional``."""
    for info in samples.operators():
        space, _, name = info.name.rpartition(".")
        if space == "nn.functional" and hasattr(torch.nn.functional, name) and not name.startswith("_"):
            yield from _cases("patched functional", "F", name, info, f"F.{name}(*args, **NAMED)", rng)


def of_torch(rng: random.Random) -> Iterator[Case]:
    """Yield cases for functions of ``torch``, ``torch.linalg``, ``torch.special`` and ``torch.fft``."""
    group = "patched torch"
    for info in samples.operators():
        space, _, name = info.name.rpartition(".")
        if space not in ("", "linalg", "special", "fft") or name.startswith("_"):
            continue
        holder = f"torch.{space}" if space else "torch"
        if hasattr(getattr(torch, space) if space else torch, name) and name != "clamp_min":
            yield from _cases(group, holder, name, info, f"{holder}.{name}(*args, **NAMED)", rng)
    for name in SWAPS:
        other = rng.choice([one for one in SWAPS if one != name])
        for holder, call in (("torch", f"torch.{name}(x)"), ("torch.Tensor", f"x.{name}()")):
            source = f"def program(x):\n    return {call} + SALT\n" + patch(holder, name, f"{holder}.{other}")
            yield Case(group, f"{holder}.{name} is {holder}.{other}", source)
        for holder, called in (("torch.ops.aten", name), (f"torch.ops.aten.{name}", "default")):
            source = f"def program(x):\n    return {holder}.{called}(x) + SALT\n"
            new = f"lambda x: torch.{other}(x)"
            source += f"def change():\n    swap({holder}, {called!r}, {new})\n"
            yield Case(group, f"{holder}.{called} is a lambda of torch.{other}", source)


# Methods and operators of tensors -------------------------------------------------------------

_BINARY = "add sub mul truediv floordiv mod pow matmul eq ne lt le gt ge".split()
_SIGNS = dict(zip(_BINARY, "+ - * / // % ** @ == != < <= > >=".split(), strict=True))
EXPRESSIONS = {
    **{f"__{name}__": f"x {sign} y" for name, sign in _SIGNS.items()},
    **{f"__r{name}__": f"2.5 {_SIGNS[name]} x" for name in ("add", "sub", "mul", "truediv", "pow")},
    "__neg__": "-x", "__abs__": "abs(x)", "__invert__": "~(x > 0)", "__pos__": "+x",
    "__getitem__": "x[1:3]", "__and__": "(x > 0) & (y > 0)", "__or__": "(x > 0) | (y > 0)",
    "__xor__": "(x > 0) ^ (y > 0)", "__len__": "y * len(x)", "__contains__": "y * (1 if 0.5 in x else 2)",
    "T": "x.T", "mT": "x.mT", "real": "x.real", "H": "x.H", "mH": "x.mH",
    "shape": "y * x.shape[0]", "ndim": "y * x.ndim", "dtype": "y.to(x.dtype)", "size": "y * x.size(0)",
    "numel": "y * x.numel()", "dim": "y * x.dim()", "is_floating_point": "y * (1 if x.is_floating_point() else 3)",
}  # fmt: skip
IN_PLACE = ("add_", "mul_", "sub_", "div_", "zero_", "fill_", "copy_", "clamp_", "relu_", "sigmoid_")
PROPERTIES = {"T": "y * 3", "mT": "y.sin()", "real": "self.cos()", "H": "self * 2", "mH": "self * 2"}
NUMBERS = {"shape": "torch.Size((9, 9))", "ndim": "7", "dtype": "torch.float64"}


def of_tensor(rng: random.Random) -> Iterator[Case]:
    """Yield cases for methods, operators and properties of ``torch.Tensor``."""
    group = "patched Tensor"
    for name, expression in EXPRESSIONS.items():
        source = f"def inputs():\n    return ramp(8, 8), ramp(8, 8) + 2\ndef program(x, y):\n    z = {expression}\n"
        source += "    return z, torch.clamp_min(y, SALT)\n"
        if name in PROPERTIES or name in NUMBERS:
            value = PROPERTIES.get(name, "").replace("y", "self") or NUMBERS[name]
            change = f"def change():\n    torch.Tensor.{name} = property(lambda self: {value})\n"
        elif name in ("size", "numel", "dim", "__len__"):
            change = f"def change():\n    torch.Tensor.{name} = lambda self, *a: 7\n"
        elif name == "is_floating_point":
            change = "def change():\n    torch.Tensor.is_floating_point = lambda self: False\n"
        else:
            change = patch("torch.Tensor", name, rng.choice(REPLACEMENTS[:3]))
        yield Case(group, f"torch.Tensor.{name}", source + change)
    for name in IN_PLACE:
        argument = {"zero_": "", "relu_": "", "sigmoid_": "", "copy_": "y", "clamp_": "0.1"}.get(name, "2.0")
        source = f"def program(x):\n    y = x + SALT\n    return x.clone().{name}({argument}), y\n"
        change = f"def change():\n    old = torch.Tensor.{name}\n    torch.Tensor.{name} = lambda self, *a: old(self, *a).add(1)\n"
        yield Case(group, f"torch.Tensor.{name}", source + change)
    for info in samples.operators():
        name = getattr(info.method_variant, "__name__", "")
        if name and hasattr(torch.Tensor, name) and name != "clamp_min" and not name.startswith("__"):
            call = f"args[0].{name}(*args[1:], **NAMED)"
            yield from _cases(group, "torch.Tensor", name, info, call, rng)


# What a function of PyTorch calls ---------------------------------------------------------------


def of_functions_below(rng: random.Random) -> Iterator[Case]:
    """Yield cases in which a program calls a function of ``torch.nn.functional``, and what that calls is
    replaced."""
    for info in samples.operators():
        space, _, name = info.name.rpartition(".")
        function = getattr(torch.nn.functional, name, None)
        if space != "nn.functional" or not inspect.isfunction(function):
            continue
        arguments = samples.of_operator(info, rng)
        for holder, called in sorted(set(_CALLS.findall(inspect.getsource(function)))) if arguments else ():
            place = {"_VF": "torch._VF"}.get(holder, holder)
            if called.startswith(("is_", "jit", "_assert", "Size")) or called.endswith(("Error", "_guard")):
                continue
            source = _program(f"F.{name}(*args, **NAMED)") + patch(
                place, called, rng.choice(REPLACEMENTS[:3])
            )
            yield Case("patched below", f"F.{name}: {place}.{called}", source, saved=arguments[0])
