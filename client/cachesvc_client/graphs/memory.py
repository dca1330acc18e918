"""Says which tensors lie in the same memory.

Where a program writes into one of two tensors that overlap, AOTAutograd compiles a graph of their memory. Up
to torch 2.15 neither PyTorch's keys nor, for sizes that do not change, Dynamo's guards hold that they do
[measured, 2.13: a service whose tensors do not overlap got the graph for those that do, and failed].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def overlaps(tensors: Iterable[tuple[str, Any]]) -> list[str]:
    """Return ``name other distance`` for each two tensors that lie in the same memory, in a fixed order.

    ``tensors``: names and tensors; other values are omitted. The distance is in bytes, from where the first
    begins to where the second does. Two parts of one storage that do not overlap are not named. Of a
    dynamic size it takes the hint, so that no guard is added.
    """
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in tensors:
        for inner, one in _plain(name, tensor):
            if (span := _span(one)) is not None:
                storage, begin, end = span
                spans.setdefault(storage, []).append((begin, end, inner))
    return sorted(text for several in spans.values() if len(several) > 1 for text in _pairs(sorted(several)))


def _plain(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a tensor with its name; of a subclass that contains others, these."""
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        yield name, value
        return
    for attribute in flatten()[0]:
        yield from _plain(f"{name}.{attribute}", getattr(value, attribute))


def _pairs(spans: list[tuple[int, int, str]]) -> Iterator[str]:
    for number, (begin, end, name) in enumerate(spans):
        other = number + 1
        while other < len(spans) and spans[other][0] < end:
            yield f"{name} {spans[other][2]} {spans[other][0] - begin}"
            other += 1


def _span(value: Any) -> tuple[int, int, int] | None:
    """Return the address of a tensor's storage, and the bytes of it between which the tensor lies; ``None``
    for what has no memory."""
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        storage = value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # of a subclass without memory of its own
        return None
    sizes, strides = map(_number, value.size()), map(_number, value.stride())
    extents, offset = list(zip(sizes, strides, strict=True)), _number(value.storage_offset())
    if any(size == 0 for size, _ in extents):
        return None
    if offset is None or any(None in extent for extent in extents):
        return storage, 0, _EVERYWHERE
    last = sum((size - 1) * stride for size, stride in extents if size is not None and stride is not None)
    width = value.element_size()
    return storage, offset * width, (offset + last + 1) * width


_EVERYWHERE = 2**63
"""The end of a tensor of which a size is known to no one before the graph runs."""


def _number(value: Any) -> int | None:
    if type(value) is int:
        return value
    hint = value.node.hint
    return None if hint is None else int(hint)
