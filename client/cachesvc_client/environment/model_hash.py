"""Describes what is compiled, as values that are equal in every process: model hash, input signature,
options.

The values route and rank candidates; PyTorch's own keys decide what is correct. Contents are hashed, never
paths, addresses or the order of a set, so that the values are the same across processes, hash seeds, working
directories, virtual environments and homes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..graphs.code.followed import FollowedCode
from ..wire.digest import Digest
from ..wire.factors import FactorValue

if TYPE_CHECKING:
    import torch

_ADDRESS = re.compile(r" (?:at|object at) 0x[0-9a-fA-F]+")
"""Matches the address of an object in a text."""
_PLACES = re.compile(r"(?:^_?name_or_path|_path|_dir|_file|_folder)$")
"""Keys of a configuration that say where something lies."""
_LIBRARY_NOISE = frozenset({"transformers_version", "torch_version", "_commit_hash"})
"""Keys of a configuration that change with the version of a library and not with the model."""
_MAX_DEPTH = 32
"""Largest depth of a configuration or of inputs that is described."""


def model_hash(model: Any) -> Digest:
    """Returns the identity of a module without the values of its parameters.

    Covers of each submodule: name, class, ``extra_repr`` and training flag; of parameters and buffers: name,
    shape, stride, dtype, device type, requires_grad; the content of the source files of all classes that are
    not torch's; ``config.to_dict()`` where there is one. Unwraps the result of ``torch.compile``. A function
    is hashed by its name and the content of its file. Takes about 2 ms for a BERT-base. Does not raise where
    a module's own methods raise.
    """
    hasher = hashlib.sha256()
    for line in _lines(_unwrap(model)):
        hasher.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return Digest("sha256:" + hasher.hexdigest())


def _unwrap(model: Any) -> Any:
    inner = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None)
    return model if inner is None else inner


def _lines(model: Any) -> Iterator[str]:
    import torch

    if not isinstance(model, torch.nn.Module):
        yield f"callable {getattr(model, '__qualname__', type(model).__qualname__)}"
        function = model if hasattr(model, "__module__") else type(model)
        yield from _sources([function])
        yield from _kernels([function])
        return
    classes: dict[type, None] = {}
    prefix: str | None = None
    for name, module in model.named_modules():
        classes[type(module)] = None
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        yield f"module {name} {kind} {module.training} {_extra(module)}"
        if prefix is None or not name.startswith(prefix):
            config = _config(module)
            if config is not None:  # its submodules hold parts of the same one
                prefix = f"{name}." if name else ""
                yield f"config {name} {config}"
    for name, parameter in model.named_parameters():
        yield f"parameter {name} {_tensor_line(parameter)}"
    for name, buffer in model.named_buffers():
        yield f"buffer {name} {_tensor_line(buffer)}"
    bases = {base: None for cls in classes for base in cls.__mro__}
    yield from _sources(bases)
    yield from _kernels(bases)


def _extra(module: torch.nn.Module) -> str:
    try:
        return _ADDRESS.sub("", module.extra_repr())
    except Exception:  # noqa: BLE001 - the application's own code
        return ""


def _config(module: torch.nn.Module) -> str | None:
    config = getattr(module, "config", None)
    try:
        value = config.to_dict() if config is not None and hasattr(config, "to_dict") else config
        if not isinstance(value, Mapping):
            return None
        return json.dumps(_stable_config(value, 0), sort_keys=True)
    except Exception:  # noqa: BLE001 - the application's own code
        return None


def _stable_config(value: Any, depth: int) -> Any:
    """Returns a configuration as JSON, without places and addresses, and with sets in order."""
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        pairs = ((str(key), item) for key, item in value.items())
        return {
            key: _stable_config(item, depth + 1)
            for key, item in pairs
            if key not in _LIBRARY_NOISE and not (_PLACES.search(key) and isinstance(item, str))
        }
    if isinstance(value, (list, tuple)):
        return [_stable_config(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_stable_config(item, depth + 1), sort_keys=True) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _ADDRESS.sub("", str(value))


def _tensor_line(tensor: torch.Tensor) -> str:
    facts = _tensor_facts(tensor)
    return json.dumps(facts, sort_keys=True)


def _tensor_facts(tensor: torch.Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = {"dtype": str(tensor.dtype).removeprefix("torch."), "device": tensor.device.type}
    facts["requires_grad"] = tensor.requires_grad
    try:
        facts["shape"] = [int(size) for size in tensor.shape]
        facts["stride"] = [int(step) for step in tensor.stride()]
    except Exception:  # noqa: BLE001 - lazy, sparse and nested ones have no shape or no stride
        facts["layout"] = str(getattr(tensor, "layout", "")).removeprefix("torch.")
    return facts


def _sources(things: Any) -> Iterator[str]:
    """Yields the digests of the files that define ``things``, by content alone; those of torch are in its
    version."""
    modules = {getattr(thing, "__module__", None) for thing in things}
    digests = set()
    for name in modules:
        if not name or name.partition(".")[0] in ("torch", "builtins", "abc", "typing"):
            continue
        path = getattr(sys.modules.get(name), "__file__", None)
        try:
            with open(path or "", "rb") as file:
                digests.add(hashlib.sha256(file.read()).hexdigest())
        except (OSError, ValueError):
            continue  # a notebook's __main__: the structure has to do
    for digest in sorted(digests):
        yield f"source {digest}"


def _kernels(things: Iterable[Any]) -> Iterator[str]:
    """Yields a user's Triton kernels; nothing without Triton or without kernels, so that the hash stays as it
    was."""
    if "triton.runtime.jit" in sys.modules:
        yield from (
            f"kernel {name} {digest}" for name, digest in sorted(FollowedCode(things).kernels.items())
        )


def input_signature(args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns inputs as JSON: of tensors shape, stride, dtype, device type, requires_grad and the dimensions
    that were marked dynamic (``torch._dynamo.mark_dynamic``, ``maybe_mark_dynamic``); of numbers the value;
    of other objects the type. Omits the values of tensors and texts."""
    return {
        "args": [_describe_input(value, 0) for value in args],
        "kwargs": {name: _describe_input(value, 0) for name, value in sorted((kwargs or {}).items())},
    }


def _describe_input(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return "…"
    torch = sys.modules.get("torch")  # without it there is no tensor among the inputs
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor_facts(value) | _dynamic_dimensions(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value if value == value and value not in (float("inf"), -float("inf")) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): _describe_input(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_describe_input(item, depth + 1) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
        return {name: _describe_input(item, depth + 1) for name, item in pairs}
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _dynamic_dimensions(tensor: torch.Tensor) -> dict[str, list[int]]:
    exact = getattr(tensor, "_dynamo_dynamic_indices", ()) or ()
    weak = getattr(tensor, "_dynamo_weak_dynamic_indices", ()) or ()
    dims = sorted({int(index) for index in (*exact, *weak)})
    return {"dynamic": dims} if dims else {}


def compile_options(
    *,
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    backend: str | Callable[..., Any] = "inductor",
    options: Mapping[str, Any] | None = None,
) -> dict[str, FactorValue]:
    """Returns the arguments of ``torch.compile`` as text. Omits those at their default, so that naming a
    default changes nothing."""
    arguments: dict[str, FactorValue] = {}
    if mode not in (None, "default"):
        arguments["mode"] = str(mode)
    if dynamic is not None:
        arguments["dynamic"] = dynamic
    if fullgraph:
        arguments["fullgraph"] = True
    if backend != "inductor":
        arguments["backend"] = backend if isinstance(backend, str) else _qualified(backend)
    if options:
        arguments["options"] = sorted(f"{key}={_option(value)}" for key, value in options.items())
    return arguments


def _option(value: Any) -> str:
    return _qualified(value) if callable(value) else _ADDRESS.sub("", str(value))


def _qualified(thing: Any) -> str:
    definition = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{definition.__module__}.{definition.__qualname__}"
