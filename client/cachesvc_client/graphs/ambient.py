"""Puts settings of the process into PyTorch's keys where the keys of a version lack them.

These settings change what is compiled from an equal graph. PyTorch's keys hold them from some version on: the
dtype of autocast, the default dtype and the number of CPU threads from 2.13, hints that override a dynamic
size's from 2.11, options of a nested region from 2.14. Before that, code for one setting is a hit under
another [measured, 2.8 and 2.11: a service under autocast to float16 computed in bfloat16].

A graph that enters autocast by itself and names no dtype takes that of ``torch.set_autocast_dtype``. No key
of 2.8, 2.11 and 2.14 holds it, 2.13 keeps such a graph out of AOTAutograd's cache, and 2.15 has the dtypes of
all devices in its key. Run on these five versions.

No key of PyTorch holds these two:

- Which attention backends are allowed (``torch.nn.attention.sdpa_kernel``) decides what an attention operator
  is traced into, and what Inductor makes of a softmax between two matrix products [measured, 2.13: under
  ``SDPBackend.MATH`` a process restored the fused operator].
- A graph names methods of tensors, and its trace calls them. Where a program replaced ``torch.Tensor.sin``,
  the key says ``sin`` all the same [measured, 2.13: wrong numbers].

A part is added only where the details lack it: no method of their class names the attribute in which later
versions keep the part. So the keys of a version that has the part stay as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from .keys import AUTOGRAD_KEY, GRAPH_KEY, complete, graph_modules, graph_nodes, nonce

_AUTOCAST_DEVICES = ("cpu", "cuda", "hpu", "ipu", "maia", "mps", "mtia", "privateuseone", "xla", "xpu")
"""Device types that autocast knows, for a torch that does not list them."""

ALWAYS = "default_dtype"
"""Name of the part that every key has: PyTorch adds it from 2.13 on, and these hooks add it before that. So a
key without it comes from a builder without these hooks."""
PARTS = {
    "autocast_state": "the dtype of autocast",
    "ambient_autocast_dtypes": "the dtype of autocast",
    ALWAYS: "the default dtype",
    "cpp_runtime_thread_count": "the number of CPU threads",
    "var_to_hint_override": "the hints of dynamic sizes",
    "nested_inductor_config_patches": "the options of nested regions",
    "attention_backends": "the allowed attention backends",
    "replaced_methods": "methods of tensors that the program replaced",
}
"""Names that parts have in a key -> words for a reason of an outcome."""


def install_hooks() -> None:
    """Put the hooks in place when the application imports the modules. Safe to call again."""
    complete(GRAPH_KEY, of_graph)
    complete(AUTOGRAD_KEY, of_autograd)


def of_graph(details: Any, graph: Any) -> dict[str, Any]:
    """Return the settings that decide how Inductor compiles a graph. AOTAutograd's key inherits them."""
    import torch

    attributes = _attributes_named(details.__class__)
    parts: dict[str, Any] = {}
    if "default_dtype" not in attributes:
        parts["default_dtype"] = str(torch.get_default_dtype())
    if "cpp_runtime_thread_count" not in attributes and _counts_threads(graph, details.example_inputs):
        parts["cpp_runtime_thread_count"] = torch.get_num_threads()
    if "var_to_hint_override" not in attributes and (hints := _hint_overrides()):
        parts["var_to_hint_override"] = hints
    if "nested_inductor_config_patches" not in attributes and _has_nested_options(graph):
        parts["nested_inductor_config_patches"] = nonce("a nested region has options of its own")
    return parts


def of_autograd(details: Any, graph: Any) -> dict[str, Any]:
    """Return the settings that decide how AOTAutograd traces a graph."""
    import torch

    dtypes = {device: str(torch.get_autocast_dtype(device)) for device in _autocast_devices()}
    autocast = getattr(details, "autocast_state", None)
    parts: dict[str, Any] = {}
    enabled = {device: dtype for device, dtype in dtypes.items() if torch.is_autocast_enabled(device)}
    if autocast is None and enabled:
        parts["autocast_state"] = enabled
    # 2.15 keeps every device's dtype there; 2.13 and 2.14 keep those of devices whose autocast is on.
    has_all = autocast is not None and dtypes.keys() <= autocast.keys()
    if not has_all and any(_enters_autocast(node) for node in graph_nodes(graph)):
        parts["ambient_autocast_dtypes"] = dtypes
    if any(_may_be_attention(node) for node in graph_nodes(graph)):
        parts["attention_backends"] = {name: getattr(torch._C, name)() for name in _backend_getters()}
    methods = {node.target for node in graph_nodes(graph) if node.op == "call_method"}
    if replaced := [text for method in sorted(methods) if (text := replacement(method))]:
        parts["replaced_methods"] = replaced
    return parts


def _autocast_devices() -> list[str]:
    import torch

    supported = getattr(torch._C, "_autocast_supported_devices", None)  # not in 2.8
    if supported is not None:
        return sorted(supported())
    return [device for device in _AUTOCAST_DEVICES if torch.amp.is_autocast_available(device)]


@functools.cache
def _attributes_named(details: Any) -> frozenset[str]:
    """Return the attributes that the methods of a class and of its bases name."""
    functions = [
        inspect.unwrap(value)
        for base in details.__mro__
        for value in vars(base).values()
        if inspect.isfunction(value)
    ]
    return frozenset(name for function in functions for name in function.__code__.co_names)


def _counts_threads(graph: Any, inputs: Any) -> bool:
    """Return whether Inductor writes the number of threads into the code.

    It does if one of the graph's tensors is on the CPU, or no tensor is known, and no setting says another
    number.
    """
    from torch._inductor import config

    if config.cpp.threads >= 1 or config.cpp.dynamic_threads:
        return False
    known = False
    for tensor in _tensors(graph, inputs):
        if tensor.device.type == "cpu":
            return True
        known = True
    return not known


def _has_nested_options(graph: Any) -> bool:
    # torch 2.8 leaves ``None`` as ``meta`` of some graphs (a Llama of transformers).
    return any((module.meta or {}).get("nested_region_config") is not None for module in graph_modules(graph))


def _tensors(graph: Any, inputs: Any) -> Iterator[Any]:
    """Yield the inputs of a graph and the values of its nodes, as far as the trace recorded them."""
    import torch
    from torch.utils._pytree import tree_leaves

    def leaves(value: Any) -> list[Any]:
        return [value] if isinstance(value, torch.Tensor) else tree_leaves(value)

    for value in inputs:
        yield from (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
    for node in graph_nodes(graph):
        for name in ("val", "example_value"):
            if (value := node.meta.get(name)) is not None:
                yield from (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def _hint_overrides() -> dict[str, int]:
    """Return the sizes for which a caller of ``mark_dynamic`` has dynamic dimensions tuned."""
    import torch

    context = torch._guards.TracingContext.try_get()
    mode = getattr(context, "fake_mode", None)
    hints = getattr(getattr(mode, "shape_env", None), "var_to_hint_override", None) or {}
    return {str(symbol): hint for symbol, hint in sorted(hints.items(), key=lambda item: str(item[0]))}


@functools.cache
def _backend_getters() -> tuple[str, ...]:
    """Return the names of the functions that say which attention backends are allowed, and in which order."""
    import torch

    return tuple(name for name in sorted(dir(torch._C)) if name.startswith("_get_") and "sdp" in name)


def _may_be_attention(node: Any) -> bool:
    """Return whether a node is an attention operator, or Inductor may make one of it and others."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return "attention" in name or "softmax" in name or name.partition(".")[0] in ("exp", "exp_")


def replacement(method: str) -> str:
    """Return what a method of tensors is where the program replaced it, else an empty text."""
    import torch

    value = inspect.getattr_static(torch.Tensor, method, None)
    module = str(getattr(value, "__module__", None) or "torch")
    if value is None or (getattr(value, "__name__", "") == method and module.partition(".")[0] == "torch"):
        return ""
    from .code_digest import FollowedCode

    return f"{method} is {module}.{getattr(value, '__qualname__', '')} code {FollowedCode([value]).digest}"


def _enters_autocast(node: Any) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "_enter_autocast"
