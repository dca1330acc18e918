"""Puts settings of the process into PyTorch's keys where the keys of a version lack them.

These settings change what is compiled from an equal graph. PyTorch's keys have them from some version on: the
dtype of autocast, the default dtype and the number of CPU threads from 2.13, hints that override a dynamic
size's from 2.11, options of a nested region from 2.14. Before that, code for one setting is a hit under
another [measured, 2.8 and 2.11: a service under autocast to float16 computed in bfloat16; 2.9: one got the
code for another hint].

A graph that enters autocast by itself and names no dtype takes that of ``torch.set_autocast_dtype``. No key
of 2.8, 2.11 and 2.14 has it, 2.13 keeps such a graph out of AOTAutograd's cache, and 2.15 has the dtypes of
all devices in its key. Run on these five versions.

Read in the sources, and rare: settings for the order of collectives (not in keys before 2.13), code for any
rank (2.11 to 2.13), passes that PyTorch's keys know by their names alone (before 2.13), what a checkpoint
saves (before 2.11), and the memory budget of a region whose first input is made outside of it (2.13, 2.14).
The page "0042" of the decisions says what each does.

No key of PyTorch has these eight:

- The instruction set of the CPU that Inductor writes code for. It reads ``ATEN_CPU_CAPABILITY`` at each
  compile, so a program that sets the variable after the restore got graphs for the other set [measured, 2.13:
  outputs of 10**27 in the place of 1, since code for 16 numbers at a time was built for 8].
- Whether oneDNN computes with a 16-bit type on this CPU, where code is built for unlike CPUs (`hardware`).
- Which tensors that a forward saved its backward may overwrite. Inductor writes into them. The key of the
  backward's graph is one for a model that returns such a tensor and a model that does not [measured, 2.8,
  2.13 and 2.15, without cachesvc: the backward changed an output of the other model].
- Which outputs of a forward the caller gets, and which are only saved for the backward. Inductor keeps the
  strides of the former [read].
- Which attention backends are allowed (``torch.nn.attention.sdpa_kernel``) decides what an attention operator
  is traced into, and what Inductor makes of a softmax between two matrix products [measured, 2.13: under
  ``SDPBackend.MATH`` a process restored the fused operator].
- Passes that put all-gathers together write the number of this rank into the code, as an offset.
- Which inputs lie in the same memory (`memory`).
- A constant in pinned memory makes outputs in pinned memory.

A part is added only where the details lack it: no method of their class names the attribute in which later
versions keep the part. So the keys of a version that has the part stay as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
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
    "picked_isa": "the instruction set that ATEN_CPU_CAPABILITY picks",
    "mkldnn_dtypes": "the 16-bit types that oneDNN has on this CPU, under TORCHINDUCTOR_CPP_MARCH",
    "nested_inductor_config_patches": "the options of nested regions",
    "donated_buffers": "the tensors that a backward may overwrite",
    "hidden_outputs": "which outputs are only saved for a backward",
    "attention_backends": "the allowed attention backends",
    "inductor_config_comms": "settings for collectives",
    "compile_on_one_rank": "code for any rank",
    "rank": "the rank of the process",
    "pinned_constants": "constants in pinned memory",
    "custom_passes": "passes of the program's own",
    "sac_context_fn_hashes": "what a checkpoint saves",
    "region_activation_memory_budget_annotations": "the memory budget of regions",
    "local_devices": "the devices of distributed tensors",
    "overlapping_inputs": "which inputs lie in the same memory",
}
"""Names that parts have in a key -> words for a reason of an outcome."""


def _no_other() -> str | None:
    return None


_other_isa: Callable[[], str | None] = _no_other


def install_hooks(other_isa: Callable[[], str | None]) -> None:
    """Put the hooks in place when the application imports the modules. Safe to call again.

    ``other_isa``: returns the instruction set that Inductor would pick now, if the restore was for another.
    """
    global _other_isa
    _other_isa = other_isa
    complete(GRAPH_KEY, _of_graphs_key)  # AOTAutograd's key inherits it
    complete(AUTOGRAD_KEY, of_autograd)


def _of_graphs_key(details: Any, graph: Any) -> dict[str, Any]:
    """Return all parts of the key of a graph that Inductor compiles."""
    from . import door

    return {**of_graph(details, graph), **door.of_torch(details, graph)}


def of_graph(details: Any, graph: Any) -> dict[str, Any]:
    """Return the settings that decide how Inductor compiles a graph. AOTAutograd's key inherits them."""
    import torch

    from .hardware import mkldnn_dtypes  # `attach` loads nothing that a compile alone needs
    from .job import communicates, has_process_group, of_a_job

    attributes = _attributes_named(details.__class__)
    parts: dict[str, Any] = {}
    if (other := _other_isa()) is not None:
        parts["picked_isa"] = other
    if (dtypes := mkldnn_dtypes(graph, details.example_inputs)) is not None:
        parts["mkldnn_dtypes"] = dtypes
    if "default_dtype" not in attributes:
        parts["default_dtype"] = str(torch.get_default_dtype())
    if "cpp_runtime_thread_count" not in attributes and _counts_threads(graph, details.example_inputs):
        parts["cpp_runtime_thread_count"] = torch.get_num_threads()
    if "var_to_hint_override" not in attributes and (hints := _hint_overrides()):
        parts["var_to_hint_override"] = hints
    if "nested_inductor_config_patches" not in attributes and _has_nested_options(graph):
        parts["nested_inductor_config_patches"] = nonce("a nested region has options of its own")
    if getattr(details, "fx_kwargs", {}).get("is_backward"):
        parts["donated_buffers"] = _donated_buffers()
    if hidden := _hidden_outputs(graph):
        parts["hidden_outputs"] = hidden
    if passes := _passes_known_by_name(attributes):
        parts["custom_passes"] = passes
    if pinned := [name for name, tensor in _constants(graph) if _is_pinned(tensor)]:
        parts["pinned_constants"] = pinned
    if has_process_group() and communicates(graph, details.example_inputs):
        parts |= of_a_job(attributes)
    return parts


def of_autograd(details: Any, graph: Any) -> dict[str, Any]:
    """Return the settings that decide how AOTAutograd traces a graph."""
    import torch

    from .attention import backend_getters, may_be_attention, settle_attention_order
    from .memory import overlaps  # `attach` loads nothing that a compile alone needs

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
    if any(may_be_attention(node) for node in graph_nodes(graph)):
        settle_attention_order()
        parts["attention_backends"] = {name: getattr(torch._C, name)() for name in backend_getters()}
    attributes = _attributes_named(details.__class__)
    if "sac_context_fn_hashes" not in attributes and (saves := _saved_by_checkpoints(graph)):
        parts["sac_context_fn_hashes"] = saves
    name = "region_activation_memory_budget_annotations"
    if name not in attributes and (budgets := _memory_budgets(graph)):
        parts[name] = budgets
    inputs = getattr(details, "example_inputs", ())
    if devices := _devices_not_in_hash(inputs):
        parts["local_devices"] = devices
    if pairs := overlaps((str(number), one) for number, one in enumerate(inputs)):
        parts["overlapping_inputs"] = pairs
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


def _donated_buffers() -> str:
    """Return the numbers of the inputs that the code of the backward which is compiled now may overwrite."""
    import torch

    context = torch._guards.TracingContext.try_get()
    return repr(context.fw_metadata.bw_donated_idxs if context is not None and context.fw_metadata else None)


def _hidden_outputs(graph: Any) -> list[int]:
    """Return the numbers of the outputs of a graph that no caller gets.

    It is empty for a graph that AOTAutograd has not traced yet.
    """
    import torch

    output = next(iter(reversed(graph.graph.nodes)), None) if graph is not None else None
    if output is None or (visible := output.meta.get("user_visible_output_idxs")) is None:
        return []
    values = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
    nodes = [number for number, one in enumerate(values) if isinstance(one, torch.fx.Node)]
    return [number for number in nodes if number not in visible]


_PASSES = ("joint_custom_pre_pass", "joint_custom_post_pass", "_post_fusion_custom_pass")
"""Settings whose values are functions. The keys of some versions have the names of these functions, and later
ones what they say of their code."""


def _passes_known_by_name(attributes: frozenset[str]) -> list[str]:
    from torch._inductor import config

    names = [name for name in _PASSES if name not in attributes and getattr(config, name, None)]
    if not names:
        return []
    from .code.followed import FollowedCode

    passes = [getattr(config, name) for name in names]
    said = [one.uuid() if hasattr(one, "uuid") else FollowedCode([one]).digest for one in passes]
    return [f"{name} is {text}" for name, text in zip(names, said, strict=True)]


def _constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that a graph holds itself, by their names in it."""
    import torch

    for module in graph_modules(graph):
        for node in module.graph.find_nodes(op="get_attr"):
            value = getattr(module, str(node.target), None)
            if isinstance(value, torch.Tensor):
                yield str(node.target), value


def _is_pinned(tensor: Any) -> bool:
    import torch

    # Nothing is pinned before that, and asking would begin to use the GPU.
    if not torch.cuda.is_initialized():
        return False
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and bool(tensor.is_pinned())


def _saved_by_checkpoints(graph: Any) -> list[str]:
    """Return what the functions say of themselves that decide what checkpointed regions save.

    From 2.11 on PyTorch keeps no graph in AOTAutograd's cache whose function says nothing.
    """
    found = [(module.meta or {}).get("_checkpoint_context_fn") for module in graph_modules(graph)]
    unknown = nonce("a function decides what a checkpoint saves")
    return [str(getattr(one, "cache_hash", unknown)) for one in found if one is not None]


def _memory_budgets(graph: Any) -> list[tuple[int, int, float]]:
    """Return the memory budgets of a graph's nodes, with the places of the nodes."""
    import torch

    budget_of = getattr(torch.fx.traceback, "_get_memory_budget_annotation", None)
    if budget_of is None:
        return []
    return [
        (outer, inner, budget)
        for outer, module in enumerate(graph_modules(graph))
        for inner, node in enumerate(module.graph.nodes)
        if (budget := budget_of(node)) is not None
    ]


def _devices_not_in_hash(inputs: Any) -> list[str]:
    """Return the devices of a rank's parts of distributed tensors, where the tensors' hash leaves them out.

    PyTorch 2.12 and 2.13 leave them out. Before, such a graph has another key in each process.
    """
    return [
        str(one._local_tensor.device)
        for one in inputs
        if (hash_of := getattr(type(one), "_stable_hash_for_caching", None)) is not None
        and hasattr(one, "_local_tensor")
        and "_local_tensor" not in inspect.unwrap(hash_of).__code__.co_names
    ]


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
    hints = getattr(getattr(mode, "shape_env", None), "var_to_hint_override", None)
    if hints is None:
        return _hints_of_inputs(mode)
    return {str(symbol): hint for symbol, hint in sorted(hints.items(), key=lambda item: str(item[0]))}


def _hints_of_inputs(mode: Any) -> dict[str, int]:
    """Return the hints on the tensors that Dynamo made fake ones of, by their number there. torch 2.9 keeps
    hints nowhere else."""
    converter = getattr(getattr(mode, "fake_tensor_converter", None), "meta_converter", None)
    numbers = getattr(getattr(converter, "describer", None), "lookup_tensor", None)
    tensors = sorted(numbers.items(), key=lambda item: item[1]) if numbers is not None else ()
    return {
        f"{number}[{dimension}]": hint
        for tensor, number in tensors
        for dimension, hint in sorted(getattr(tensor, "_dynamo_hint_overrides", {}).items())
    }


def _enters_autocast(node: Any) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "_enter_autocast"
