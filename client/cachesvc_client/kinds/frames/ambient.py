"""Digests the settings of the process that decide what a frame is compiled to, besides its guards.

Dynamo guards what it reads while it traces, and the global state of autograd, autocast and determinism. The
rest is in PyTorch's cache keys and in what `graphs.ambient` adds to them. No key is made where nothing is
traced, so the same parts are made here, of a graph that has everything on which a part depends: a tensor on
the CPU, autocast, a softmax, and a collective where the process is of a job.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ...graphs import ambient
from .describe import text_of

_WRAPPERS = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "_compiler_fn", "compiler_fn")
"""Names under which a wrapper of ``torch.compile`` keeps the backend (torch 2.10 to 2.15)."""


def inductor_backend(backend: Any) -> Any | None:
    """Return Inductor's backend, as ``torch.compile`` makes it, out of its wrappers; ``None`` for another."""
    import torch

    for _ in range(8):
        if type(backend) is torch._TorchCompileInductorWrapper:
            return backend
        inner = next((one for name in _WRAPPERS if (one := getattr(backend, name, None)) is not None), None)
        if inner is None:
            return None
        backend = inner
    return None


def describe_backend(backend: Any, one_graph: bool) -> str:
    """Return in words what compiles the graphs of a frame. ``backend``: Inductor's.

    Raises ``TypeError`` for an option whose value has no words, such as a function.
    """
    return f"inductor {text_of(backend.config)} dynamic={backend.dynamic!r} fullgraph={one_graph!r}"


def uses_cuda_graphs(options: Mapping[str, Any]) -> bool:
    """Return whether a compile with these options records CUDA graphs."""
    from torch._inductor import config

    return bool(options.get("triton.cudagraphs", config.triton.cudagraphs))


def replacement(method: str) -> str:
    """Return what a method of tensors is where the program replaced it, else an empty text."""
    return ambient.replacement(method)


def digest(options: Mapping[str, Any]) -> str:
    """Return the digest of the settings of this process. ``options``: those of the compile.

    Raises ``TypeError`` for a setting whose value has no words, such as a function, and where the program has
    hooks of all modules.
    """
    import torch
    from torch._dynamo import config as dynamo_config
    from torch._functorch import config as functorch_config
    from torch._inductor import codecache
    from torch._inductor import config as inductor_config

    _refuse_hooks_of_all_modules()
    graph, inputs = _probe(ambient.has_process_group())
    # A recording bundles AOTAutograd's results, which changes no code.
    with inductor_config.patch(dict(options)), functorch_config.patch(bundled_autograd_cache=False):
        functorch = _settings(functorch_config)
        key = codecache.FxGraphCachePickler(graph).get_hash(_details(graph, inputs))
    parts = {
        "graph": key,
        "autograd": dict(ambient.of_autograd(SimpleNamespace(), graph)),
        "functorch": functorch,
        "dynamo": _settings(dynamo_config),
        "matmul": torch.get_float32_matmul_precision(),
        "device": str(torch.get_default_device()),
    }
    return hashlib.sha256(text_of(parts).encode()).hexdigest()


def _refuse_hooks_of_all_modules() -> None:
    """Raise ``TypeError`` where ``torch.nn.modules.module`` holds a hook of all modules: Dynamo traces such a
    hook and does not guard it."""
    from torch.nn.modules import module

    for name, value in vars(module).items():
        if name.startswith("_global_") and isinstance(value, Mapping) and value:
            raise TypeError(f"torch.nn.modules.module.{name} holds a hook of all modules")


def _details(graph: Any, inputs: list[Any]) -> Any:
    """Return what PyTorch's key of a graph is made of, without the hash of torch's sources.

    That hash takes a quarter of a second. The version of torch decides whether an entry fits at all, and the
    code that was traced is compared function by function.
    """
    from torch._inductor import codecache

    made = inspect.unwrap(codecache.FxGraphHashDetails.__init__)
    scope = {**vars(codecache), "torch_key": bytes}
    init = types.FunctionType(made.__code__, scope, made.__name__, made.__defaults__, made.__closure__)
    details = object.__new__(codecache.FxGraphHashDetails)
    init(details, graph, inputs, {}, [])
    for name, value in ambient.of_graph(details, graph).items():
        if not hasattr(details, name):
            setattr(details, name, value)
    return details


def _settings(config: Any) -> dict[str, Any]:
    """Return the values of a module of settings, without those that decide nothing of what is compiled."""
    ignored = {*getattr(config, "_compile_ignored_keys", ()), *getattr(config, "_save_config_ignore", ())}
    return {name: value for name, value in config.get_config_copy().items() if name not in ignored}


@functools.cache
def _probe(collective: bool) -> tuple[Any, list[Any]]:
    """Return a graph with everything that a part of a key depends on, and its input.

    ``collective``: the graph calls other ranks.
    """
    import torch

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", None, True, None))
    if collective:
        import torch.distributed._functional_collectives  # registers the operator

        x = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (x,))
    graph.output(graph.call_function(torch.nn.functional.softmax, (x, -1)))
    with torch.device("cpu"):
        value = torch.zeros(2, dtype=torch.float32)
    return torch.fx.GraphModule({}, graph), [value]
