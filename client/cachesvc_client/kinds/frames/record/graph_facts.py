"""Records what decides how a graph is traced, and has PyTorch keep graphs that it otherwise caches nowhere.

Dynamo guards what it reads of a program's objects. It does not guard the methods of tensors that a graph
calls, nor the code of an operator that a graph names: AOTAutograd traces both after Dynamo.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ....graphs import operators, request
from ....graphs.code import targets, user_kernels
from ....graphs.keys import CORE, graph_nodes
from ..gpu_libraries import library_calls
from ..stored import RecordedFrame

_UNCACHED = (
    *(f"torch.ops.higher_order.{name}" for name in ("cond", "while_loop", "scan", "map_impl")),
    *(f"torch.amp.autocast_mode.{name}" for name in ("_enter_autocast", "_exit_autocast")),
)
"""Functions of PyTorch's own in graphs that AOTAutograd caches nowhere: its key lacks a setting, or a graph
inside of the graph. A frame has guards, and all settings are compared."""
_CACHEABLE = "unsafe_marked_cacheable_functions"
"""The setting that names functions which AOTAutograd may keep."""
_RECORDED = "recorded"
"""The value by which a function of ``_UNCACHED`` is told from one that the program marked."""
_CALLS = re.compile(r"\btorch\.ops\.(\w+)\.(\w+)(?:\.(\w+))?")
"""Matches an operator in generated code."""
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
"""Matches a line of generated code in which Inductor says of which part of the graph the next kernel is."""


@contextlib.contextmanager
def uncached_graphs() -> Iterator[None]:
    """Have AOTAutograd keep graphs that call a function of ``_UNCACHED`` or an ``autograd.Function``, whose
    code Dynamo traces and the record compares."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config

    autograd_functions = "autograd_cache_allow_custom_autograd_functions"
    changed = ((config, _CACHEABLE), (functorch_config, autograd_functions))
    own = {name: getattr(module, name) for module, name in changed if hasattr(module, name)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(request.changed_by_cachesvc(own))
        if hasattr(config, _CACHEABLE):
            marks = {**getattr(config, _CACHEABLE), **dict.fromkeys(_UNCACHED, _RECORDED)}
            stack.enter_context(config.patch({_CACHEABLE: marks}))
        if hasattr(functorch_config, autograd_functions):
            stack.enter_context(functorch_config.patch({autograd_functions: True}))
        yield


@contextlib.contextmanager
def proven_keys() -> Iterator[None]:
    """Have Inductor make the keys that a service makes: those without the marks of `uncached_graphs`."""
    from torch._inductor import config

    marks = getattr(config, _CACHEABLE, {})
    own = {name: value for name, value in marks.items() if value != _RECORDED}
    with config.patch({_CACHEABLE: own} if own != marks else {}):
        yield


def note_graph(
    frame: RecordedFrame, graph: Any, registered: operators.RegisteredFunctions, *, has_names: bool = False
) -> str:
    """Record what a graph calls; return why its frame cannot be recorded, else an empty text. ``has_names``:
    its own tensors have names, under which a service finds them."""
    nodes = list(graph_nodes(graph))
    for value in (*targets.called(graph), *targets.modes()):
        return f"the graph runs code of the application below Dynamo: {targets.name(value)}"
    if any(True for _ in (*graph.parameters(), *graph.buffers())) and not has_names:
        return "the graph has tensors that are no inputs of it"
    return _note_operators(frame, operators.operator_names(nodes), registered)


def check_kernels(launched: Sequence[Any], builder: Any, guards: Iterable[Any]) -> None:
    """Raise ``TypeError`` for a Triton kernel that a graph launches and that no guard is about: nothing would
    compare its source."""
    named = (guard for guard in guards if guard.create_fn_name() == "ID_MATCH") if launched else ()
    values = [builder.get(guard) for guard in named]
    compared = {id(user_kernels.innermost(value)) for value in values}
    for kernel in launched:
        if id(kernel) not in compared:
            raise TypeError(f"the graph launches a Triton kernel that no guard names: {kernel}")


def held_tensors(graph: Any) -> tuple[str, ...]:
    """Return the names in guards of the tensors that Dynamo's graph has itself, as it does with those of an
    optimizer, in the order in which AOTAutograd makes them the first inputs. Empty where one has no name."""
    names = [name for name, _ in graph.named_parameters(remove_duplicate=False)]
    names += [name for name, _ in graph.named_buffers(remove_duplicate=False)]
    sources = getattr(graph, "_param_name_to_source", None) or {}
    if not all(name in sources for name in names):
        return ()
    return tuple(sources[name].name for name in names)


def note_extent(frame: RecordedFrame, graph: Any) -> None:
    """Note whether Dynamo's graph has all of the frame, and whether its sizes are fixed. ``graph``: as Dynamo
    made it."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    if getattr(reason, "graph_break", True) is not False:
        return  # or one of several graphs
    inputs = [node.meta.get("example_value") for node in graph.graph.nodes if node.op == "placeholder"]
    frame.output.without_breaks, frame.output.of_fixed_sizes = True, all(map(_is_fixed, inputs))


def _is_fixed(value: Any) -> bool:
    """Return whether an input of a graph is a plain tensor with fixed sizes."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and all(type(size) is int for size in (*value.shape, *value.stride(), value.storage_offset()))
    )


def note_code(frame: RecordedFrame, source: str, registered: operators.RegisteredFunctions) -> str:
    """Record the operators that generated code calls, those of an operator's own code among them, and the
    functions of the GPU's libraries. Return as `note_graph`."""
    names = {
        f"{space}::{name}" + (f".{overload}" if overload not in ("", "default") else "")
        for space, name, overload in _CALLS.findall(_COMMENT.sub("", source))
        if space not in CORE
    }
    frame.output.libraries = library_calls(source)
    return _note_operators(frame, names, registered)


def _note_operators(frame: RecordedFrame, names: set[str], registered: operators.RegisteredFunctions) -> str:
    try:
        described = {name: operators.describe_operator(name, registered) for name in sorted(names)}
    except LookupError as error:
        return f"the graph calls an operator of which a start cannot tell whether it is the same: {error}"
    # An operator's code may be another one by now: what was traced is what its graph was noted with.
    first = frame.facts.operators
    frame.facts.operators |= {name: text for name, text in described.items() if text and name not in first}
    return ""
