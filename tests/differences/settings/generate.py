"""Finds what can differ between a builder and a service, in the torch that is installed.

Settings are enumerated and not listed by hand: entries of PyTorch's configurations, properties below
``torch.backends``, functions ``torch.set_*``, and variables that the sources read. Each gets another value by
its type. What has no other value that is known is counted as left out.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FEW = ("inference", "training", "views")
"""Probes for differences of which there are hundreds."""


@dataclass(frozen=True)
class Difference:
    """Is one fact that differs. ``change`` returns a context in which it does.

    ``probes``: those to run; all if empty.
    """

    group: str
    name: str
    change: Callable[[], contextlib.AbstractContextManager[Any]]
    probes: tuple[str, ...] = ()


def patched(holder: Any, name: str, value: Any) -> Any:
    """Return a context in which an attribute has another value."""

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        before = getattr(holder, name)
        setattr(holder, name, value)
        try:
            yield
        finally:
            setattr(holder, name, before)

    return change


def called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return a context that begins with a call.

    Nothing is taken back: each difference has its own process.
    """

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        result = function(*arguments, **named)
        if hasattr(result, "__enter__"):
            with result:
                yield
        else:
            yield

    return change


# Configurations ------------------------------------------------------------------------------

CONFIGURATIONS = {
    "inductor": "torch._inductor.config",
    "dynamo": "torch._dynamo.config",
    "functorch": "torch._functorch.config",
    "fx": "torch.fx.experimental._config",
    "compiler": "torch.compiler.config",
    "distributed": "torch.distributed.config",
}
_NOT_TRIED = re.compile(
    r"remote|_cache$|^force_disable_caches|upload|compile_threads|worker|autotune_in_subproc"
)
"""Entries that switch caches off, or reach other machines or processes."""


def of_configurations(left_out: list[str]) -> Iterator[Difference]:
    """Yield one difference for each entry of PyTorch's configurations that has another value."""
    for group, module_name in CONFIGURATIONS.items():
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        for name, entry in sorted(getattr(module, "_config", {}).items()):
            value = getattr(module, name, None)
            other = _another(value, getattr(entry, "value_type", None))
            if other is None or _NOT_TRIED.search(name):
                left_out.append(f"{module_name}.{name}")
                continue
            change = _config_patch(module, name, other)
            yield Difference(f"config {group}", f"{name}={other!r}"[:90], change, FEW)


def _config_patch(module: Any, name: str, value: Any) -> Any:
    return lambda: module.patch({name: value})


def _another(value: Any, kind: Any) -> Any:
    """Return another value of the same type; ``None`` if none is known."""
    if isinstance(value, bool):
        return not value
    options = [one for one in _literals(kind) if one != value and one is not None]
    if options:
        return options[0]
    if isinstance(value, int):
        return value * 2 if value > 1 else value + 1
    if isinstance(value, float):
        return value / 2 if value else 0.5
    kinds = [kind, *typing.get_args(kind)]
    if value is None:
        return next((new for known, new in ((bool, True), (int, 2), (float, 0.5)) if known in kinds), None)
    return None


def _literals(kind: Any) -> list[Any]:
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return [literal for inner in typing.get_args(kind) for literal in _literals(inner)]


# Settings of torch ---------------------------------------------------------------------------


def of_setters(left_out: list[str]) -> Iterator[Difference]:
    """Yield differences for each function ``torch.set_*`` with values that are known for it."""
    import torch

    values: dict[str, list[tuple[Any, ...]]] = {
        "set_default_dtype": [(torch.float64,), (torch.float16,), (torch.bfloat16,)],
        "set_default_tensor_type": [(torch.DoubleTensor,)],
        "set_default_device": [("cpu",), ("meta",)],
        "set_num_threads": [(1,), (2,), (3,)],
        "set_num_interop_threads": [(3,)],
        "set_float32_matmul_precision": [("high",), ("medium",)],
        "set_flush_denormal": [(True,)],
        "set_deterministic_debug_mode": [("warn",), ("error",)],
        "set_grad_enabled": [(True,), (False,)],
        "set_warn_always": [(True,)],
        "set_autocast_cache_enabled": [(False,)],
        "set_autocast_enabled": [("cpu", True), ("cuda", True)],
        "set_autocast_cpu_enabled": [(True,)],
        "set_autocast_dtype": [("cpu", torch.float16), ("cuda", torch.bfloat16)],
        "set_autocast_cpu_dtype": [(torch.float16,)],
        "set_autocast_gpu_dtype": [(torch.bfloat16,)],
        "set_anomaly_enabled": [(True,)],
        "set_printoptions": [(2,)],
        "set_rng_state": [(torch.Generator().manual_seed(5).get_state(),)],
    }
    for name in sorted(vars(torch)):
        if name.startswith("set_") and callable(getattr(torch, name)):
            if name not in values:
                left_out.append(f"torch.{name}")
            for arguments in values.get(name, ()):
                text = ", ".join(str(one)[:20] for one in arguments)
                yield Difference("torch.set_*", f"{name}({text})", called(getattr(torch, name), *arguments))


def of_backends(left_out: list[str]) -> Iterator[Difference]:
    """Yield a difference for each property of an object below ``torch.backends``, and for each switch."""
    import torch

    names = sorted(one.name for one in pkgutil.iter_modules(torch.backends.__path__))
    seen: set[int] = set()
    for module_name in names:
        try:
            module = importlib.import_module(f"torch.backends.{module_name}")
        except Exception:  # noqa: BLE001 - a backend of another platform
            continue
        holders = {"": module, **dict(sorted(vars(module).items()))}
        for key, holder in holders.items():
            if id(holder) in seen or inspect.isclass(holder) or not _is_holder(holder):
                continue
            seen.add(id(holder))
            where = ".".join(part for part in ("torch.backends", module_name, key) if part)
            yield from _properties(where, holder, left_out)
        for key, function in sorted(vars(module).items()):
            if re.match(r"(enable|allow)_\w+", key) and callable(function):
                for value in (True, False):
                    yield Difference(
                        "torch.backends", f"{module_name}.{key}({value})", called(function, value)
                    )


def _is_holder(value: Any) -> bool:
    kind = type(value)
    return getattr(kind, "__module__", "").startswith("torch.backends") and kind.__name__ != "function"


def _properties(where: str, holder: Any, left_out: list[str]) -> Iterator[Difference]:
    kind = type(holder)
    attributes = [key for base in kind.__mro__ for key in vars(base) if not key.startswith("_")]
    for key in sorted(set(attributes)):
        try:
            value = getattr(holder, key)
        except Exception:  # noqa: BLE001 - of another platform
            continue
        if callable(value) or inspect.ismodule(value):
            continue
        others = ["tf32", "ieee", "bf16"] if "precision" in key else [_another(value, None)]
        for other in others:
            if other is None or other == value:
                left_out.append(f"{where}.{key}")
            else:
                yield Difference("torch.backends", f"{where}.{key}={other!r}", patched(holder, key, other))


# Variables -----------------------------------------------------------------------------------

_READ = re.compile(
    r"(?:environ\.get\(|getenv\(|environ\[|env_name\w*\s*=\s*)\s*[\"']([A-Z][A-Z0-9_]{3,})[\"']"
    r"(?:\s*,\s*[\"']([^\"']*)[\"'])?"
)
_SAFE_VARIABLE = re.compile(
    r"^(TORCH|PYTORCH|INDUCTOR|AOT|PARTITIONER|DYNAMO|FAKE|FX|FUNCTORCH|ENABLE|ATEN|TRITON|OMP|MKL)"
)
_NO_VARIABLE = re.compile(
    r"CACHE|REMOTE|UPLOAD|_DIR|_PATH|THREADS|WORKER|LOG|TRACE|HOME|FBCODE|RANK|PORT|HOST|SEARCH_SPACE|FORCE_DISABLE"
)
SOURCES = (
    "_inductor",
    "_dynamo",
    "_functorch",
    "fx/experimental",
    "_higher_order_ops",
    "_subclasses",
    "utils",
)


def variables() -> dict[str, str]:
    """Return the variables that the sources of the compiler read, each with a value to try."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    result: dict[str, str] = {}
    for source in SOURCES:
        for path in sorted((folder / source).rglob("*.py")):
            for name, default in _READ.findall(path.read_text(errors="replace")):
                if _SAFE_VARIABLE.match(name) and not _NO_VARIABLE.search(name):
                    result.setdefault(name, "0" if default == "1" else "1")
    return result


# Contexts, programs and inputs ---------------------------------------------------------------


def of_contexts() -> Iterator[Difference]:
    from . import contexts

    for name, change in contexts.CONTEXTS.items():
        yield Difference("context", name, change)


def of_programs() -> Iterator[Difference]:
    from . import programs

    for name, change in programs.PROGRAMS.items():
        yield Difference("program", name, change)
    for name, change in programs.INPUTS.items():
        yield Difference("input", name, change)


def differences() -> tuple[list[Difference], list[str]]:
    """Return all differences but those of variables, and what has no other value that is known."""
    left_out: list[str] = []
    result = [
        Difference("none", "nothing", contextlib.nullcontext),
        *of_contexts(),
        *of_programs(),
        *of_setters(left_out),
        *of_backends(left_out),
        *of_configurations(left_out),
    ]
    return result, left_out
