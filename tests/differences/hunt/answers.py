"""Write answers as plain Python objects, and compare two of them.

A case may replace any method of tensors, so an answer is written with functions that no case replaces, and
compared in a process without the case.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch.utils import _pytree

TOLERANCE = 1e-3
"""The share of the largest number by which answers may differ. A difference that is tried is far larger."""

_Base = torch._C.TensorBase if hasattr(torch._C, "TensorBase") else torch._C._TensorBase
_LEAVES = _pytree.tree_leaves
_DETACH, _TOLIST, _CLASS = _Base.detach, _Base.tolist, _Base.as_subclass
_VIEW, _CONJ, _NEG = torch.view_as_real, _Base.resolve_conj, _Base.resolve_neg
_POINTER = _Base.data_ptr
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Where an object lies: another place in each process."""


def plain(value: Any, inputs: Any = ()) -> list[dict[str, Any]]:
    """Return the leaves of an answer with all that a caller can see of each."""
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    return [_leaf(leaf, tensors) for leaf in _LEAVES(value)]


def _leaf(leaf: Any, inputs: list[Any]) -> dict[str, Any]:
    if not isinstance(leaf, torch.Tensor):
        return {"class": type(leaf).__name__, "text": _ADDRESS.sub("", repr(leaf))[:200]}
    inner = getattr(leaf, "hunt_inner", None)
    described = {"class": type(leaf).__name__, "requires_grad": leaf.requires_grad}
    tensor = inner if inner is not None else leaf
    with torch._C.DisableTorchFunctionSubclass():
        tensor = _CLASS(_DETACH(tensor), torch.Tensor)
        if tensor.is_meta:
            return {**described, "text": f"meta {tuple(tensor.shape)}"}
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        alias = next((n for n, one in enumerate(inputs) if _shares(tensor, one)), None)
        described |= {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "alias": alias}
        tensor = _NEG(_CONJ(tensor))
        if tensor.is_complex():
            tensor = _VIEW(tensor)
        return {**described, "values": _flat(_TOLIST(tensor))}


def _shares(tensor: Any, other: Any) -> bool:
    try:
        return bool(_POINTER(tensor) == _POINTER(other) != 0)
    except (RuntimeError, NotImplementedError):
        return False


def _flat(values: Any) -> list[float]:
    if not isinstance(values, list):
        return [values]
    return [number for one in values for number in _flat(one)]


def difference(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> str:
    """Return how two answers differ, in a few words with the largest error; an empty text if they do not."""
    if len(one) != len(other):
        return f"{len(one)} values, {len(other)} expected"
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        for name in ("class", "text", "dtype", "shape", "requires_grad", "alias"):
            if a.get(name) != b.get(name):
                return f"value {index}: {name} {a.get(name)}, expected {b.get(name)}"
        error = _error(a.get("values", []), b.get("values", []))
        if error > 0:
            return f"value {index}: off by {error:.3g}"
    return ""


def _error(one: list[float], other: list[float]) -> float:
    """Return by how much numbers differ; 0 where that is within the tolerance."""
    finite = [abs(number) for number in other if math.isfinite(number)]
    allowed = TOLERANCE * max(finite, default=1.0)
    worst = 0.0
    for a, b in zip(one, other, strict=True):
        if a == b or (a != a and b != b):
            continue
        worst = max(worst, abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf)
    return worst if worst > max(allowed, 1e-6) else 0.0
