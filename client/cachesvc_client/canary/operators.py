"""Sees the operators that eager runs: what they write into, and in which dtypes they compute.

The module imports torch, so only the thread that compiles may import it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .tolerance import Compared, compare, differ, tolerance

_COMMUNICATING = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"})
"""Namespaces of operators that wait for other ranks, which may run no canary."""


class NotComparable(Exception):
    """Says why a graph is not run beside its function."""


class OperatorMode(TorchDispatchMode):  # type: ignore[misc]
    """Sees each operator before it runs.

    ``dtypes``: the floating dtypes of arguments and results. ``floating``: whether there is any.
    """

    def __init__(self, args: Iterable[Any]) -> None:
        super().__init__()
        self.dtypes: set[str] = set()
        self.floating = False
        self._sharing: dict[int, list[int]] = defaultdict(list)
        for index, item in enumerate(args):
            if isinstance(item, torch.Tensor):
                self._sharing[storage_of(item)].append(index)
                self._note(item)

    def write(self, tensor: Any) -> None:
        """Prepare for a write into a tensor."""

    def made(self, tensor: Any) -> None:
        """Take note of a result."""

    def arguments_of(self, tensor: Any) -> list[int]:
        """Return the indices of the arguments that share their memory with a tensor."""
        return self._sharing.get(storage_of(tensor), [])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in _COMMUNICATING:
            raise NotComparable("ranks communicate in it")
        for tensor in _written(func, args, kwargs):
            self.write(tensor)
        result = self.run(func, args, kwargs)
        for tensor in tensors_in(result):
            self._note(tensor)
            self.made(tensor)
        return result

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator."""
        return func(*args, **kwargs)

    def compare(self, own: list[Any], reference: list[Any]) -> Compared:
        """Compare tensors of a function with eager's, which this mode saw.

        Whole numbers that floating ones decide (an argmax) may differ much where these differ little. So
        whole numbers count only where the graph has no floating ones.
        """
        if [item.shape for item in own] != [item.shape for item in reference]:
            return Compared(difference=float("nan"))
        pairs = list(zip(own, reference, strict=True))
        floating = [pair for pair in pairs if _is_floating(pair[1])]
        if not floating and self.floating:
            return Compared(note="only whole numbers come out, which floating ones chose")
        allowed = tolerance(self.dtypes)
        values = (differ(*pair) for pair in floating or pairs)
        return compare(values, allowed.rtol, allowed.atol) if floating else compare(values, 0.0, 0.0)

    def _note(self, tensor: Any) -> None:
        if _is_floating(tensor):
            self.floating = True
            self.dtypes.add(str(tensor.dtype).removeprefix("torch."))


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors in a nested value, in order."""
    return [item for item in tree_leaves(value) if isinstance(item, torch.Tensor)]


def storage_of(tensor: Any) -> int:
    """Return what names the memory of a tensor as long as it lives."""
    pointer: int = tensor.untyped_storage()._cdata
    return pointer


def describe_difference(comparison: Compared) -> str:
    """Return what is wrong with a first output, in words."""
    return (
        f"its first output differs from eager by {comparison.difference:.3g} where "
        f"{comparison.allowed:.3g} is allowed (values up to {comparison.scale:.3g})"
    )


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the tensors that an operator writes into, by its schema.

    The schema of batch norm does not say it (ATen's ``native_functions.yaml``: running statistics without an
    alias annotation).
    """
    named = [*zip(func._schema.arguments, args, strict=False)]
    named += [
        (argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs
    ]
    hidden = ("running_mean", "running_var") if "batch_norm" in func._schema.name else ()
    values = [
        value
        for argument, value in named
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in hidden
    ]
    return tensors_in(values)


def _is_floating(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())
