"""Records what each compile is asked for: the workload, read at the entry of ``compile_fx``.

There PyTorch knows everything that it makes its keys of, and has looked up nothing yet: the graph as Dynamo
traced it, its inputs, grad mode, autocast and configuration. Read in torch 2.11 and 2.13, run with
2.13. The records explain an outcome and decide nothing. One record for each graph takes well under a
millisecond for a hundred nodes, and never raises.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..wire.factors import Facts
from ..wire.facts import union
from . import keys, operators
from .code import user_kernels

_LIBRARIES = (
    "accelerate", "bitsandbytes", "diffusers", "flash_attn", "peft", "sentence_transformers", "timm",
    "torchao", "torchvision", "transformers", "vllm", "xformers",
)  # fmt: skip
"""Packages that models are made of. Their versions change what is traced."""
_MAX_NODES = 20_000
"""Nodes of a graph that are recorded, at most."""
_MAX_KINDS = 5
"""Classes of modules that are named, at most."""


@dataclass(slots=True)
class Graph:
    """Holds the facts of one call of ``compile_fx``. ``compiled``: whether Inductor compiled the graph here;
    else the graph came from a cache."""

    facts: dict[str, Any] = field(default_factory=dict)
    compiled: bool = False


class GraphRequests:
    """Records the graphs that this process compiles and the Triton kernels that it launches beside them.

    ``seconds``: the time that the recording took.
    """

    def __init__(self, registered: operators.RegisteredFunctions) -> None:
        """``registered``: what libraries have registered, for the operators that a graph calls."""
        self._registered = registered
        self.graphs: list[Graph] = []
        self.kernels: set[str] = set()
        self.seconds = 0.0

    def note(self, *args: Any, **kwargs: Any) -> Graph:
        """Record and return a call of ``compile_fx(model, example_inputs, …, config_patches=)``."""
        begin = time.perf_counter()
        graph = Graph()
        try:
            module = args[0] if args else kwargs.get("model_")
            graph.facts = dict(_facts(module, kwargs.get("config_patches"), self._registered))
        except Exception:  # noqa: BLE001 - a torch whose internals differ: there is less to explain
            graph.facts = {}
        self.graphs.append(graph)
        self.seconds += time.perf_counter() - begin
        return graph

    def note_launch(self, event: Mapping[str, Any]) -> None:
        """Record a kernel that the application launches itself. ``event``: what Triton says of the launch."""
        begin = time.perf_counter()
        self.kernels.update(user_kernels.describe_launch(event))
        self.seconds += time.perf_counter() - begin

    def facts(self, missed: bool = False) -> Facts:
        """Return the facts of all graphs and of the kernels beside them, by the names of the factor table.

        ``missed``: take only the graphs that were compiled here, if there are any.
        """
        chosen = [graph for graph in self.graphs if graph.compiled] if missed else []
        launches = [{"triton_kernels": self.kernels}] if self.kernels else []
        return union([*launches, *(graph.facts for graph in chosen or self.graphs)])


def _facts(
    module: Any, patches: Any, registered: operators.RegisteredFunctions
) -> Iterator[tuple[str, list[str]]]:
    """Yield the facts of one graph, as rows of the factor table. ``patches``: the options of the compile."""
    import torch

    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    values = {node.name: node.meta.get("example_value") for node in placeholders}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    own = {name for name in tensors if "_parameters_" in name or "_buffers_" in name}
    inputs = [value for name, value in tensors.items() if name not in own]
    sizes = [_sizes(tensor) for tensor in inputs]
    symbolic = len(tensors) < len(values) or any("*" in size for size in sizes)
    # Under inference_mode PyTorch finds what was built under no_grad: both are one value (tests/matrix).
    yield "grad", ["grad" if torch.is_grad_enabled() else "no_grad"]
    yield "autocast", [_autocast(torch)]
    yield "device", sorted({str(tensor.device) for tensor in tensors.values()})
    yield "dtype", sorted({_short(tensor.dtype) for tensor in tensors.values()})
    yield "options", [_pairs(patches) or "default"]
    yield "dynamic", ["dynamic" if symbolic else "static"]
    yield "shapes", ["; ".join(sizes)]
    yield "strides", ["; ".join(map(_layout, inputs))]
    yield "matmul_precision", [torch.get_float32_matmul_precision()]
    yield "deterministic", ["on" if torch.are_deterministic_algorithms_enabled() else "off"]
    yield "default_dtype", [_short(torch.get_default_dtype())]
    yield "inductor_config", _set_in_code("torch._inductor.config")
    yield "functorch_config", _set_in_code("torch._functorch.config")
    yield "modules", _modules(module.graph.nodes)
    yield "libraries", list(_libraries())
    yield "parameters", sorted({_sizes(tensors[name]) for name in own})
    nodes = list(keys.graph_nodes(module))
    yield "python_operators", operators.describe_operators(nodes, registered)
    yield "triton_kernels", sorted(set(user_kernels.describe_kernels(nodes)))
    yield "operations", _operations(nodes)


def _modules(nodes: Iterable[Any]) -> list[str]:
    """Return the classes of the modules that a graph is made of, with the number of each, as one text: those
    of the program and of libraries first, each group from the outside to the inside."""
    stacks = (node.meta.get("nn_module_stack") or {} for node in itertools.islice(nodes, _MAX_NODES))
    seen = dict.fromkeys(place for stack in stacks for place in stack.values())
    counted = Counter(kind for _, kind in seen if isinstance(kind, type))
    kinds = sorted(counted, key=lambda kind: kind.__module__.startswith("torch."))
    text = ", ".join(f"{kind.__name__} x{counted[kind]}" for kind in kinds[:_MAX_KINDS])
    more = f", and {len(kinds) - _MAX_KINDS} more" if len(kinds) > _MAX_KINDS else ""
    return [text + more] if text else []


def _autocast(torch: Any) -> str:
    on = [
        f"{device} {_short(torch.get_autocast_dtype(device))}"
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
    return ", ".join(on) or "off"


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _sizes(tensor: Any) -> str:
    """Return the shape, such as ``4x32``; a dynamic dimension is ``*``."""
    return "x".join(str(size) if isinstance(size, int) else "*" for size in tensor.shape) or "scalar"


def _layout(tensor: Any) -> str:
    """Return ``contiguous``, or the order of the dimensions in memory, outermost first; where there are gaps,
    the strides, or ``strided`` if a size is dynamic."""
    if tensor.is_contiguous():
        return "contiguous"
    if any(not isinstance(step, int) for step in (*tensor.stride(), *tensor.shape)):
        return "strided"
    order = sorted(range(tensor.dim()), key=lambda index: -tensor.stride(index))
    dense = tensor.permute(order).is_contiguous()
    return "order " + ",".join(map(str, order)) if dense else f"stride {','.join(map(str, tensor.stride()))}"


def _operations(nodes: Iterable[Any]) -> list[str]:
    """Return each called operation with its number of calls, such as ``gelu x2``.

    An operation has the numbers and texts that it is called with, and no names of values. A constant tensor
    is ``constant``. Places in tables of the process are omitted: `user_kernels` says what lies there.
    """
    counted: Counter[str] = Counter()
    for number, node in enumerate(nodes):
        if number > _MAX_NODES:
            counted["more"] += 1
        elif node.op in ("call_function", "call_method", "call_module"):
            named = [
                f"{name}={value}"
                for name, value in node.kwargs.items()
                if _is_plain(value) and name not in user_kernels.OF_PROCESS
            ]
            values = ", ".join(str(value) for value in (*node.args, *named) if _is_plain(value))
            counted[f"{_operation(node)}({values})" if values else _operation(node)] += 1
        elif node.op == "get_attr":
            counted["constant"] += 1
    return [f"{name} x{count}" for name, count in counted.items()]


def _operation(node: Any) -> str:
    target = node.target
    if isinstance(target, str):
        return target if node.op == "call_method" else "module"
    return getattr(target, "__name__", None) or str(target)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _pairs(patches: Any) -> str:
    if not isinstance(patches, dict):
        return ""
    return ", ".join(f"{name}={_text(value)}" for name, value in sorted(patches.items()))


def _text(value: Any) -> str:
    """Return a value as a text without an address, so that it is the same in every process."""
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return str(value)[:120] if " at 0x" not in str(value) else type(value).__qualname__


_of_program: dict[str, Any] = {}
"""Name of a setting that cachesvc itself has changed -> the value that the program has."""


def keep_of_program(name: str, value: Any) -> None:
    """Have the facts of graphs hold the program's value of a setting that cachesvc changes for good."""
    _of_program.setdefault(name, value)


@contextlib.contextmanager
def changed_by_cachesvc(settings: Mapping[str, Any]) -> Iterator[None]:
    """Have the facts of graphs hold the program's values of some settings, while cachesvc changes these."""
    _of_program.update(settings)
    try:
        yield
    finally:
        for name in settings:
            _of_program.pop(name, None)


def _set_in_code(name: str) -> list[str]:
    """Return the settings of a module of PyTorch's (``torch.utils._config_module``) that the code has set, as
    ``name=value``.

    These are the settings that are part of a key and differ from their defaults, or from what a variable of
    the environment made of the defaults.
    """
    module: Any = sys.modules.get(name)
    ignored = tuple(getattr(module, "_cache_config_ignore_prefix", ()))
    ignored += tuple(getattr(module, "_save_config_ignore", ()))
    settings = []
    for key, entry in getattr(module, "_config", {}).items():
        if module._is_default(key) or key.startswith(ignored) or entry.alias is not None:
            continue
        value = _of_program[key] if key in _of_program else getattr(module, key)
        base = entry.default if type(entry.env_value_default) is object else entry.env_value_default
        if type(value) is not type(base) or value != base:  # else the code set it and set it back
            settings.append(f"{key}={_text(value)}")
    return settings


def _libraries() -> Iterator[str]:
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            yield f"{name} {version}"
