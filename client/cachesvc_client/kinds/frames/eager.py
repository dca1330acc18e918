"""Keeps the graph of a frame as Dynamo made it, which the canary runs beside the compiled one.

PyTorch generates a Python function from such a graph and runs it as the graph's ``forward``. That function is
kept as text, with the objects that the text names. So it computes what the graph computes, and takes a few
kilobytes. It holds no tensor: a graph with a tensor of its own is refused, since that may be a weight.

A service without a canary does not unpickle it.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from ...graphs.code.user_kernels import LAUNCHES

_SELF = "self"
_FORWARD = "forward"
"""The name of the function in the text."""
_LIBRARIES = frozenset({"torch", *sys.stdlib_module_names})
"""Packages whose objects a graph may name: the reader imports them."""


class EagerGraph(NamedTuple):
    """A graph that eager can run. ``code``: the text and its objects, pickled. ``refused``: why there is
    none."""

    code: bytes = b""
    refused: str = ""


def keep(graph: Any) -> EagerGraph:
    """Return what is kept of a graph (a ``torch.fx.GraphModule``). Never raises."""
    try:
        eager = EagerGraph(_pickled(graph))
        function_of(eager)  # what cannot be read back is refused here
        return eager
    except Exception as error:  # noqa: BLE001 - a graph may name anything
        return EagerGraph(refused=" ".join(str(error).split())[:200] or type(error).__name__)


def function_of(graph: EagerGraph) -> Callable[..., Any]:
    """Return the function that takes the graph's inputs and returns its outputs. Raises what its imports
    raise."""
    source, names = _Unpickler(io.BytesIO(graph.code)).load()
    exec(source, names)  # of a verified file
    return functools.partial(names[_FORWARD], None)


def deferred_function_of(graph: EagerGraph) -> Callable[..., Any]:
    """Return what `function_of` returns, which is made at the first call."""
    made = functools.cache(lambda: function_of(graph))
    return lambda *inputs: made()(*inputs)


def _pickled(graph: Any) -> bytes:
    """Return the text and its objects. Raises ``TypeError`` or ``pickle.PicklingError`` with the reason why a
    graph cannot be kept."""
    for node in graph.graph.nodes:
        if getattr(node.target, "__name__", None) in LAUNCHES:
            raise TypeError("it launches a Triton kernel, by its place in a table of the process")
        if node.op in ("get_attr", "call_module"):
            raise TypeError(f"it holds {node.target}, which is no input of the graph")
    if next(graph.parameters(), None) is not None or next(graph.buffers(), None) is not None:
        raise TypeError("it holds tensors")
    code = graph.graph.python_code(_SELF)
    source = code.src.strip()
    used = names_in(compile(source, "graph", "exec"))
    names = {name: value for name, value in sorted(code.globals.items()) if name in used}
    data = io.BytesIO()
    _Pickler(data, protocol=4).dump((source, names))
    return data.getvalue()


def names_in(code: types.CodeType) -> set[str]:
    """Return all names that a module's code and its functions read."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(names_in, inner))


class _Pickler(pickle.Pickler):
    """Writes objects of PyTorch and of the standard library by their names, modules too."""

    def persistent_id(self, value: Any) -> str | None:
        package = getattr(value, "__module__", None) or ""
        name = value.__name__ if isinstance(value, types.ModuleType) else package
        if isinstance(name, str) and name and name.partition(".")[0] not in _LIBRARIES:
            raise TypeError(f"it names {getattr(value, '__qualname__', name)} of {name.partition('.')[0]}")
        return name if isinstance(value, types.ModuleType) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: Any) -> Any:
        return importlib.import_module(name)
