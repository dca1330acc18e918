"""Describes what a graph calls and which classes its tensors have, where that is not torch's own.

A graph, and each graph inside of it, names functions. PyTorch's keys have their names. A function of torch is
what torch was released with, or `released` says what it is; `operators` describes operators. Any other
function,
method, class or object is described by a digest of its code with all that it reads. Where that is not
possible,
such as for a function of a C extension, the graph is not kept, and the reason names it.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

from ..keys import graph_modules, graph_nodes
from ..released import known, wrappers
from .followed import FollowedCode
from .library import is_library

_DEEPEST = 6
"""How many subclasses lie inside of one tensor, at most."""


def describe(graph: Any, inputs: Iterable[Any]) -> tuple[list[str], str]:
    """Return ``name code 91c0ed2f4a11`` for each function and class of an application that a trace of the
    graph
    runs; and in words what has no description, else an empty text. ``inputs``: the graph's.

    The texts are sorted, each once.
    """
    found: dict[int, Any] = {}
    for value in (*called(graph), *_classes(graph, inputs), *modes()):
        found.setdefault(id(value), value)
    texts, unknown = set(), ""
    for value in found.values():
        followed, words = FollowedCode([value]), name(value)
        texts.add(f"{words} code {followed.digest}")
        if followed.unknown and not unknown:
            unknown = f"the graph depends on {words}, which reads or is {followed.unknown}"
    return sorted(texts), unknown


def name(value: Any) -> str:
    """Return the name of a function or class; of another object that of its class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', None) or ''}.{named.__qualname__}".lstrip(".")


def called(graph: Any) -> Iterator[Any]:
    """Yield what the nodes of a graph call and pass that is not torch's own."""
    for node in graph_nodes(graph):
        if node.op == "call_function" and not _is_own(node.target):
            yield node.target
        if node.op != "output":
            yield from _passed((node.args, node.kwargs))
    for module in graph_modules(graph):
        for node in module.graph.find_nodes(op="call_module"):
            called = type(module.get_submodule(node.target))
            if not is_library(called) and not called.__name__.startswith("GraphModule"):
                yield called


def _passed(value: Any) -> Iterator[Any]:
    """Yield the functions, classes and objects of an application among the arguments of a node."""
    import torch

    if isinstance(value, (tuple, list)):
        for one in value:
            yield from _passed(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _passed(one)
    elif isinstance(value, slice):
        yield from _passed((value.start, value.stop, value.step))
    elif not isinstance(value, (torch.fx.Node, *_PLAIN)) and not _is_own(value):
        yield value


_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _is_own(value: Any) -> bool:
    """Return whether a value is of torch or of the standard library, or is described as an operator."""
    if isinstance(value, type):
        return is_library(value)
    if isinstance(value, wrappers.OPENED):
        holder = getattr(value, "__self__", None)
        functions = list(wrappers.functions_in(value))
        return all(known.is_known(one.__code__) for one in functions) and (holder is None or _is_own(holder))
    if known.is_c_function(value):
        holder = known.owner_of(value)
        if holder is not None:
            return _is_own(holder)
        owner = getattr(value, "__objclass__", None)
        module = getattr(value, "__module__", None) or getattr(owner, "__module__", None) or "builtins"
        return known.is_own_module(module)
    return isinstance(value, types.ModuleType) or is_library(type(value))


def _classes(graph: Any, inputs: Iterable[Any]) -> Iterator[type]:
    """Yield the application's classes of the tensors that a graph gets or holds, and of those inside of
    them."""
    import torch

    for value in inputs:
        if isinstance(value, torch.Tensor):
            yield from classes_of(value)
    for module in graph_modules(graph):
        for node in module.graph.nodes:
            value = node.meta.get("example_value") if node.op == "placeholder" else None
            if node.op == "get_attr":
                value = getattr(module, str(node.target), None)
            if isinstance(value, torch.Tensor):
                yield from classes_of(value)


def classes_of(tensor: Any, depth: int = 0) -> Iterator[type]:
    import torch

    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Parameter) or depth == _DEEPEST:
        return
    if not is_library(kind):
        yield kind
    for inner in list(getattr(tensor, "__dict__", {}).values()):
        if isinstance(inner, torch.Tensor):
            yield from classes_of(inner, depth + 1)


def modes() -> Iterator[type]:
    """Yield the application's classes among the modes through which operators run now."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    for mode in _get_current_dispatch_mode_stack():
        if not is_library(type(mode)):
            yield type(mode)
