"""Judge the answers of a probe: of restored code, of eager, and of a compile without any cache."""

from __future__ import annotations

from typing import Any

ROUNDINGS = 64
"""The allowed difference, in units of the last place of the largest number of an answer."""


def difference_of(one: Any, other: Any) -> str:
    """Return how two answers differ, in a few words; an empty text if they do not.

    An answer is a list of described tensors (`described`).
    """
    import torch

    if len(one) != len(other):
        return f"{len(one)} tensors, {len(other)} expected"
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        for name in ("class", "dtype", "shape", "strides", "requires_grad", "alias"):
            if a[name] != b[name]:
                return f"tensor {index}: {name} {a[name]}, expected {b[name]}"
        x, y = a["values"].double(), b["values"].double()
        if x.numel() == 0:
            continue
        eps = torch.finfo(b["values"].dtype).eps if b["values"].is_floating_point() else 0.0
        scale = max(float(y.abs().nan_to_num(0.0, 0.0, 0.0).max()), 1e-3)
        if not torch.allclose(x, y, rtol=0.0, atol=ROUNDINGS * eps * scale, equal_nan=True):
            return f"tensor {index}: off by {float((x - y).abs().max()):.3g}"
    return ""


def described(value: Any, inputs: list[Any]) -> list[dict[str, Any]]:
    """Return the tensors of an answer with all that a caller can see of each.

    ``alias``: the number of the input whose memory it shares.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return [_described(leaf, inputs) for leaf in leaves]


def _described(tensor: Any, inputs: list[Any]) -> dict[str, Any]:
    import torch

    values = tensor.detach()
    with torch._C.DisableTorchFunction():
        values = values.as_subclass(torch.Tensor)
        values = values.to_dense() if values.layout != torch.strided else values
        values = values.resolve_conj().resolve_neg()
        values = torch.view_as_real(values) if values.is_complex() else values
        values = torch.zeros_like(values, device="cpu") if values.is_meta else values.clone()
    return {
        "class": type(tensor).__name__,
        "dtype": str(tensor.dtype),
        "shape": tuple(tensor.shape),
        "strides": tuple(tensor.stride()) if tensor.layout == torch.strided else None,
        "requires_grad": tensor.requires_grad,
        "alias": next((index for index, one in enumerate(inputs) if _shares(tensor, one)), None),
        "values": values,
    }


def _shares(tensor: Any, other: Any) -> bool:
    try:
        return bool(tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0)
    except (RuntimeError, NotImplementedError):
        return False


def verdict(restored: dict[str, Any], reference: dict[str, Any]) -> tuple[str, str]:
    """Return the verdict on one probe, and why.

    *not reached*: nothing was looked up or compiled, mostly since the probe raises before. *compiled*:
    nothing was reused. *right*: the answer and the code are those of a compile without a cache. *other
    code*: a compile without a cache makes other code, whose answer is equal. *false hit*: the answer
    differs. *unknown*: without a cache this probe does not compile, and eager does not say more.
    """
    if restored["compiled"]:
        return "compiled", ""
    if not restored["loaded"]:
        return "not reached", restored.get("error", "")
    if restored.get("error") and not reference.get("error"):
        return "false hit", f"raises {restored['error']}"
    if reference.get("error"):
        differs = "" if restored.get("error") else difference_of(restored["answer"], restored["eager"])
        return ("unknown", differs) if differs else ("right", "as eager; without a cache it does not compile")
    differs = difference_of(restored["answer"], reference["answer"])
    if differs:
        return "false hit", differs
    if restored["code"] != reference["code"]:
        return "other code", first_difference(restored["code"], reference["code"])
    return "right", ""


def first_difference(one: list[str], other: list[str]) -> str:
    """Return the first lines in which two lists of sources differ."""
    if len(one) != len(other):
        return f"{len(one)} graphs, {len(other)} without a cache"
    for a, b in zip(one, other, strict=True):
        if a != b:
            left, right = a.splitlines(), b.splitlines()
            for x, y in zip(left, right):  # noqa: B905 - one may be longer
                if x != y:
                    return f"{x.strip()[:90]!r} for {y.strip()[:90]!r}"
            return f"{len(left)} lines for {len(right)}"
    return ""
