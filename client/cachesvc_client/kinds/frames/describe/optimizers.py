"""Describes an optimizer by its class and by all of its values.

Dynamo compares an optimizer by its identity alone, and puts what it reads of it into the code. So two
optimizers count as the same only where no value of either tells them apart, up to the numbers
in their tensors, which are inputs of the code.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from .digests import digest
from .objects import describe

_DICTS = (dict, collections.defaultdict, collections.OrderedDict)
_SCALARS = (bool, int, float, str)
_UNORDERED = (set, frozenset)


def is_optimizer(value: Any) -> bool:
    """Return whether an object is an optimizer of PyTorch's, or of a class that a program made of it."""
    import torch

    return isinstance(value, torch.optim.Optimizer)


def describe_optimizer(optimizer: Any) -> str:
    """Return what an optimizer is. Raises ``TypeError`` for one with a value that has no description.

    What a person sets comes as text, each in a line of its own, so that a reason shows what differs.
    """
    kind = type(optimizer)
    if any(vars(one).get("__slots__") for one in kind.__mro__):
        raise TypeError(f"an object of {kind.__qualname__} with slots has no description")
    return "\n".join(_parts(optimizer, _Tensors(optimizer)))


def _parts(optimizer: Any, tensors: _Tensors) -> Iterator[str]:
    yield describe(type(optimizer))
    for group in optimizer.param_groups:
        if type(group) is not dict:
            raise TypeError(f"a group of parameters is no dict, but {type(group).__qualname__}")
        own = {name: one for name, one in group.items() if name != "params"}
        yield from (f"{name}={tensors.text(one)}" for name, one in own.items())
        yield f"parameters={len(group['params'])}:{digest(tensors.text([*group['params']]))}"
    yield f"state={len(optimizer.state)}:{digest(tensors.text(optimizer.state))}"
    others = {name: one for name, one in vars(optimizer).items() if name not in ("param_groups", "state")}
    for name, one in others.items():
        yield f"{name}={digest(tensors.text(one))}"


class _Tensors:
    """Puts values in words. A tensor is described where it is met first, and has a number from then on."""

    def __init__(self, optimizer: Any) -> None:
        self._numbers: dict[int, int] = {}
        self._alive = optimizer
        """Keeps the tensors alive, so that none gets the address of another one."""

    def text(self, value: Any) -> str:
        """Return a value as a text that is equal in every process, in its order."""
        import torch

        if isinstance(value, torch.Tensor):
            return self._of_tensor(value)
        if type(value) in _DICTS:
            inside = ", ".join(f"{self.text(key)}: {self.text(one)}" for key, one in value.items())
            made = f" {describe(value.default_factory)}" if hasattr(value, "default_factory") else ""
            return f"{type(value).__name__}{made} {{{inside}}}"
        if type(value) in (list, tuple):
            return f"{type(value).__name__}[{', '.join(map(self.text, value))}]"
        if isinstance(value, _UNORDERED):
            raise TypeError("a set that an optimizer holds has no order")
        return repr(value) if value is None or type(value) in _SCALARS else describe(value)

    def _of_tensor(self, tensor: Any) -> str:
        if (number := self._numbers.get(id(tensor))) is not None:
            return f"tensor {number}"
        self._numbers[id(tensor)] = number = len(self._numbers)
        return f"tensor {number} {_tensor_words(tensor)}"


def _tensor_words(tensor: Any) -> str:
    """Return all of a tensor that a trace may read. Raises ``TypeError`` for one of a subclass."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        raise TypeError(f"a tensor of {type(tensor).__qualname__} in an optimizer has no description")
    form = f"{tensor.dtype} {tensor.device} {[*tensor.shape]} {[*tensor.stride()]}"
    keys = torch._C._dispatch_keys(tensor)
    return f"{type(tensor).__name__} {form} requires_grad={tensor.requires_grad} {keys}"
