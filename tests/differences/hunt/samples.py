"""Arguments for functions and modules of PyTorch, as PyTorch's own tests make them."""

from __future__ import annotations

import functools
import random
import sys
import types
import unittest
import warnings
from typing import Any

import torch
from torch.utils import _pytree

LARGEST = 4096
"""A sample with more numbers is not used."""


@functools.cache
def operators() -> list[Any]:
    """Return PyTorch's descriptions of its operators, those of the public Python functions."""
    _stub()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    seen: dict[str, Any] = {}
    for one in op_db:
        seen.setdefault(one.name, one)
    return list(seen.values())


@functools.cache
def modules() -> list[Any]:
    """Return PyTorch's descriptions of its modules."""
    _stub()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_db
    return list(module_db)


def _stub() -> None:
    """Put a module in its place that PyTorch's tests import and these samples do not need."""
    stub: Any = types.ModuleType("expecttest")
    stub.TestCase, stub.assert_expected_inline = unittest.TestCase, None
    sys.modules.setdefault("expecttest", stub)


def of_operator(
    info: Any, rng: random.Random, count: int = 1
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return at most ``count`` arguments of an operator with which it answers the same twice."""
    torch.manual_seed(0)
    try:
        samples = list(info.sample_inputs("cpu", torch.float32, requires_grad=False))
    except Exception:  # noqa: BLE001 - it needs another device or another package
        return []
    rng.shuffle(samples)
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for sample in samples[:8]:
        arguments = (sample.input, *sample.args), sample.kwargs
        if len(found) < count and is_usable(arguments) and _is_deterministic(info.op, arguments):
            found.append(arguments)
    return found


def is_usable(value: Any) -> bool:
    """Return whether an object is small, can be saved, and holds numbers."""
    leaves = _pytree.tree_leaves(value)
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    plain = (bool, int, float, str, complex, type(None), torch.dtype, torch.device, torch.memory_format)
    if not tensors or sum(one.numel() for one in tensors) not in range(1, LARGEST):
        return False
    strided = all(type(one) is torch.Tensor and one.layout is torch.strided for one in tensors)
    return strided and all(isinstance(one, (torch.Tensor, *plain)) for one in leaves)


def _is_deterministic(function: Any, arguments: Any) -> bool:
    """Return whether a function answers the same twice, with a tensor."""
    try:
        one, other = (_leaves_of(function, arguments) for _ in range(2))
        has_tensor = any(isinstance(leaf, torch.Tensor) and leaf.numel() for leaf in one)
        return has_tensor and all(_equal(*pair) for pair in zip(one, other, strict=True))
    except Exception:  # noqa: BLE001 - not with these arguments
        return False


def _leaves_of(function: Any, arguments: Any) -> list[Any]:
    copied = _pytree.tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, arguments)
    return list(_pytree.tree_leaves(function(*copied[0], **copied[1])))


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    if one.layout is not torch.strided or not one.numel():
        return one.layout is torch.strided
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num())) and bool(one.isfinite().any())


def of_module(info: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Return a module of a class, in inference, with arguments for it; ``None`` if none is known."""
    torch.manual_seed(0)
    try:
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
        )
        for one in inputs:
            made, forward = one.constructor_input, one.forward_input
            if forward is None:
                continue
            module = info.module_cls(*made.args, **made.kwargs).eval()
            arguments = forward.args, forward.kwargs
            if is_usable(arguments) and _is_deterministic(module, arguments):
                return module, *arguments
    except Exception:  # noqa: BLE001 - not on this device
        return None
    return None
