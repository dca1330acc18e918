"""Keeps a graph that Dynamo split for ``DistributedDataParallel``, and calls its parts in a service.

While such a module runs, Dynamo has a ``DDPOptimizer`` in the place of the backend. It splits each graph
where a bucket of gradients ends, has Inductor compile the parts, and returns a graph that calls one after the
other. That is kept as the text of its function, and names of the parts. Read in torch 2.11 to 2.15.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from .describe.groups import describe_of_job
from .eager import names_in

_MODULE = "torch._dynamo.backends.distributed"
_SELF, _FORWARD, _TORCH = "self", "forward", "torch"
_PLAIN = (type(None), bool, int, str, float)
_OF_MODULE = (
    *("bucket_bytes_cap", "broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view"),
    *("require_backward_grad_sync", "static_graph", "_delay_all_reduce_all_params", "dim", "device_ids"),
)
"""Attributes of a ``DistributedDataParallel`` that decide how gradients are joined."""


class Part(NamedTuple):
    """One part of a graph that was split.

    Attributes:
        attribute: Under which name the text calls it.
        graph: The name of its graph.
        is_single: Whether the first of its outputs is meant.
    """

    attribute: str
    graph: str
    is_single: bool


class SplitGraph(NamedTuple):
    """A graph that was split. ``source``: the text of the function that calls the parts."""

    source: str
    parts: tuple[Part, ...]

    def graphs(self) -> tuple[str, ...]:
        """Return the names of the graphs of the parts."""
        return tuple(part.graph for part in self.parts)


def splitter_of(compiler: Any) -> Any | None:
    """Return Dynamo's ``DDPOptimizer`` whose method compiles a frame; ``None`` for any other compiler."""
    kind = getattr(sys.modules.get(_MODULE), "DDPOptimizer", None)
    owner = getattr(compiler, "__self__", None)
    return owner if kind is not None and type(owner) is kind and compiler.__name__ == "compile_fn" else None


def unsplit(compiler: Any) -> Any:
    """Return what compiles the parts of the graphs of a frame."""
    owner = splitter_of(compiler)
    return compiler if owner is None else owner.backend_compile_fn


def describe_splitter(compiler: Any) -> str:
    """Return how the graphs of a frame are split, and the module for which; an empty text where they are not.

    Where a graph is split depends on the sizes of the buckets alone. All that decides how gradients are
    joined is compared. Raises ``TypeError`` for a module with a value that has no words.
    """
    owner = splitter_of(compiler)
    if owner is None:
        return ""
    from torch.nn.parallel import DistributedDataParallel

    module = DistributedDataParallel._get_active_ddp_module()
    if type(module) is not DistributedDataParallel:
        raise TypeError(f"{type(module).__qualname__} is not PyTorch's own DistributedDataParallel")
    values = {name: getattr(module, name, None) for name in _OF_MODULE}
    for name, value in values.items():
        if not all(type(one) in _PLAIN for one in (value if isinstance(value, list) else [value])):
            raise TypeError(f"DistributedDataParallel.{name} has no description")
    words = [f"{name}={value}" for name, value in values.items()]
    ignored = sorted(module.parameters_to_ignore)
    sizes = f"buckets of {owner.first_bucket_cap} and {owner.bucket_bytes_cap}"
    group = describe_of_job(module.process_group)
    return f"{sizes}, {', '.join(words)}, without {ignored}, {_precision(module)}, {group}"


def _precision(module: Any) -> str:
    precision = module.mixed_precision
    if precision is None:
        return "one precision"
    if type(precision).__module__ != type(module).__module__:
        raise TypeError("the mixed precision of DistributedDataParallel has no description")
    return repr(precision)


def keep(graph: Any, names: list[str]) -> SplitGraph:
    """Return a graph that calls the graphs of these names, in order. Raises ``TypeError`` for one that does
    more."""
    calls = [node for node in graph.graph.nodes if node.op == "call_module"]
    if [*dict.fromkeys(node.target for node in calls)] != [node.target for node in calls]:
        raise TypeError("a part of a split graph is called twice")
    if len(calls) != len(names):
        raise TypeError("a part of a split graph was compiled unseen")
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "call_module", "output") and not _is_item(node):
            raise TypeError(f"a split graph calls {node.target} between its parts")
    source = graph.graph.python_code(_SELF).src.strip()
    if names_in(compile(source, "graph", "exec")) - {_FORWARD, _TORCH, *(node.target for node in calls)}:
        raise TypeError("the text of a split graph names other objects")
    parts = (
        Part(node.target, name, bool(getattr(graph, node.target).unwrap_singleton_tuple))
        for node, name in zip(calls, names, strict=True)
    )
    return SplitGraph(source, tuple(parts))


def _is_item(node: Any) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def joined(split: SplitGraph, graphs: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that calls the parts as the graph that was split did. ``graphs``: those of the parts,
    by name. ``split``: of a verified file."""
    import torch

    names: dict[str, Any] = {_TORCH: torch}  # for the types of inputs
    exec(split.source, names)
    parts = {one.attribute: _part(graphs[one.graph], one.is_single) for one in split.parts}
    forward, owner = names[_FORWARD], SimpleNamespace(**parts)

    def call(*inputs: Any) -> Any:
        return forward(owner, *inputs)

    return call


def _part(graph: Callable[..., Any], is_single: bool) -> Callable[..., Any]:
    """Return a part of a graph, as ``SubmodCompiler`` has it."""
    if not is_single:
        return graph

    def call(*inputs: Any) -> Any:
        outputs = graph(*inputs)
        return outputs[0] if isinstance(outputs, (tuple, list)) else outputs

    return call
