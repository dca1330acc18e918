"""Describes the settings of the process that decide what a frame is compiled to, besides its guards.

Dynamo guards what it reads while it traces, and the global state of autograd, autocast and determinism. The
rest is in PyTorch's cache keys and in what `graphs.ambient` adds to them. No key is made where nothing is
traced, so the same parts are made here, of a graph that has everything on which a part depends: a tensor on
the CPU, autocast, a softmax, and a collective where the process is of a job.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from ....graphs import ambient, job
from ....graphs.code.settings import of_process
from ....graphs.released import comparison
from ..deferred import code_cache, with_stand_ins
from .objects import text_of

_WRAPPERS = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "_compiler_fn", "compiler_fn")
"""Names under which a wrapper of ``torch.compile`` keeps the backend (torch 2.10 to 2.15)."""
_WRAPPER = "torch._inductor.codegen.wrapper"
"""The module of which a key needs one function, for a graph with Triton kernels of the application."""
_CHOICES = "torch._inductor.choices"
"""The module with the registered choices of Inductor (torch 2.15)."""
_AUTOGRAD = "autograd."
"""What precedes the names of AOTAutograd's settings: a graph may have a setting of the same name."""
_HEX = 16
"""Hexadecimal digits of a setting's digest."""
_MOST_NAMES = 4
"""Settings that a reason names at most."""
_BACKENDS = ("custom_backend_passes", "custom_backend_codegen_configs")
"""Names in ``codecache`` of what is registered for each device: an application's, or ``None``."""


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


def settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of this process: name -> digest of the value. ``options``: those of the compile.

    Raises ``TypeError`` for a setting whose value has no words, such as a function, and where the program has
    hooks of all modules.
    """
    import torch
    from torch._dynamo import config as dynamo_config
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    codecache = code_cache()
    _refuse_hooks_of_all_modules()
    graph, inputs = _probe(job.has_process_group())
    # A recording bundles AOTAutograd's results, which changes no code.
    with (
        inductor_config.patch(dict(options)),
        functorch_config.patch(bundled_autograd_cache=False),
        _choices_not_imported(inductor_config),
    ):
        functorch = _settings(functorch_config)
        pickler = codecache.FxGraphCachePickler(graph)
        parts = {name: pickler.get_hash(value) for name, value in vars(_details(graph, inputs)).items()}
    values = {
        **_replaced_in_torch(),
        **{_AUTOGRAD + name: value for name, value in ambient.of_autograd(SimpleNamespace(), graph).items()},
        **{f"torch._functorch.config.{name}": value for name, value in functorch.items()},
        **{f"torch._dynamo.config.{name}": value for name, value in _settings(dynamo_config).items()},
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "default device": str(torch.get_default_device()),
        **of_process(),
    }
    return {name: _short(text) for name, text in parts.items()} | {
        name: short(value) for name, value in values.items()
    }


def short(value: Any) -> str:
    """Return what `settings` has for a value."""
    return _short(text_of(value))


def _replaced_in_torch() -> dict[str, str]:
    """Return what the program put in the place of torch's own, by place. Raises ``TypeError`` for what has no
    description."""
    changes = comparison.changes()
    if changes.unknown:
        raise TypeError(changes.unknown)
    return {f"{place}, which the program replaced": text for place, text in changes.described.items()}


def changed_settings(recorded: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return the names of the settings that differ between two answers of `settings`."""
    return sorted(name for name in {*recorded, *here} if recorded.get(name) != here.get(name))


def setting_words(names: list[str]) -> str:
    """Return the names of settings in words."""
    return ", ".join(ambient.PARTS.get(name.removeprefix(_AUTOGRAD), name) for name in names[:_MOST_NAMES])


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX]


@contextlib.contextmanager
def _choices_not_imported(config: Any) -> Iterator[None]:
    """Have Inductor's settings made into a key without the module of its choices (torch 2.15), which imports
    all lowerings. Where nobody set or registered choices, the key has ``None`` for them."""
    name = "_cache_config_serializer"
    original = vars(config).get(name)
    if original is None:
        yield
        return

    def serialize(settings: dict[str, Any]) -> None:
        registered = getattr(sys.modules.get(_CHOICES), "_registered_inductor_choices", None)
        if registered or settings.get("inductor_choices_class") is not None:
            original(settings)

    vars(config)[name] = serialize  # a module of settings lets no attribute be set that is no setting
    try:
        yield
    finally:
        vars(config)[name] = original


def _refuse_hooks_of_all_modules() -> None:
    """Raise ``TypeError`` where ``torch.nn.modules.module`` holds a hook of all modules: Dynamo traces such a
    hook and does not guard it."""
    from torch.nn.modules import module

    for name, value in vars(module).items():
        if name.startswith("_global_") and isinstance(value, Mapping) and value:
            raise TypeError(f"torch.nn.modules.module.{name} holds a hook of all modules")


def _details(graph: Any, inputs: list[Any]) -> Any:
    """Return what PyTorch's key of a graph is made of, but for the graph and its inputs.

    Left out is what costs time and decides nothing here: the hash of torch's sources and Triton's key (their
    versions decide whether an entry fits at all, and the code that was traced is compared function by
    function), and the backends that Inductor registers for itself.
    """
    from torch._inductor import codecache

    names = {
        "torch_key": bytes,
        "CacheBase": SimpleNamespace(get_system=dict),
        "init_backend_registration": lambda: None,
        **{name: _set(getattr(codecache, name, {})) for name in _BACKENDS},
    }
    wrapper = SimpleNamespace(user_defined_triton_kernel_transitive_closure_source_code=None)
    init = with_stand_ins(codecache.FxGraphHashDetails.__init__, {_WRAPPER: wrapper}, **names)
    details = object.__new__(codecache.FxGraphHashDetails)
    init(details, graph, inputs, {}, [])
    for name, value in ambient.of_graph(details, graph).items():
        if not hasattr(details, name):
            setattr(details, name, value)
    details.gm, details.example_inputs = None, []
    return details


def _set(backends: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an application registered for the devices of Inductor's backends."""
    return {device: value for device, value in backends.items() if value is not None}


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
