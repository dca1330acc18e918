"""Puts into keys what Inductor asks the CPU itself, where one build serves unlike CPUs (`environment.march`).

Then the fingerprint says what code was built for, and not on what it was built. With a level and an
instruction set fixed, Inductor asks the CPU for one thing more that decides code: whether oneDNN computes
with a 16-bit type there (``mkldnn._is_mkldnn_bf16_supported``, ``…fp16…``). It calls oneDNN's operators
if so, and they raise on a CPU that cannot. What else it asks are sizes of caches, which decide how fast code
is (``tests/environment/test_march.py`` lists the places).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .code import targets
from .keys import CORE, graph_nodes

_PLAIN_TEXT = "float32 float64 complex64 complex128 bool int8 int16 int32 int64 uint8"
_PLAIN = frozenset(f"torch.{name}" for name in _PLAIN_TEXT.split())
"""Types with which every CPU computes."""


def mkldnn_dtypes(graph: Any, inputs: Iterable[Any]) -> str | None:
    """Return with which 16-bit types oneDNN computes on this CPU; ``None`` if that decides nothing: no target
    is set for the compiler, or the graph is known to have plain types alone."""
    import torch
    from torch._inductor import config

    inputs = list(inputs)
    if getattr(config.cpp, "march", None) is None or _is_plain(graph, inputs):
        return None
    names = {"bfloat16": "_is_mkldnn_bf16_supported", "float16": "_is_mkldnn_fp16_supported"}
    return ", ".join(one for one, name in names.items() if getattr(torch.ops.mkldnn, name)()) or "no type"


def _is_plain(graph: Any, inputs: list[Any]) -> bool:
    """Return whether every value of a graph is known, and of a plain type: nothing casts inside of it."""
    import torch

    if torch.is_autocast_enabled("cpu") or any(targets.describe(graph, inputs)):
        return False
    values = [*inputs, *_values(graph)]
    dtypes = (one.dtype if isinstance(one, torch.Tensor) else one for one in _leaves(values))
    return all(str(dtype) in _PLAIN for dtype in dtypes if isinstance(dtype, torch.dtype)) and all(
        _is_known(node) for node in graph_nodes(graph)
    )


def _leaves(values: list[Any]) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return tree_leaves(values)  # type: ignore[no-any-return]


def _values(graph: Any) -> Iterator[Any]:
    """Yield the values of a graph's nodes and what they are called with."""
    for node in graph_nodes(graph):
        yield from (node.meta.get(name) for name in ("val", "example_value"))
        yield (node.args, dict(node.kwargs))


def _is_known(node: Any) -> bool:
    """Return whether the trace recorded the value of a node, and no operator of another library made it."""
    if node.op in ("output", "placeholder", "get_attr"):
        return True
    namespace = (
        getattr(node.target, "namespace", None)
        or getattr(node.target, "_qualified_op_name", "aten").partition("::")[0]
    )
    return namespace in CORE and any(name in node.meta for name in ("val", "example_value"))
