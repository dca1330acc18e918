"""Reads Triton kernels of the application: what they and their tuners are told, and what they read."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

from .asked import PLAIN
from .library import is_kernel
from .reading import names_in, read_by


def read_by_kernel(function: Any) -> tuple[str, list[Any]]:
    """Return the plain values that a kernel reads of its module, as text, and the kernels that it calls."""
    if not isinstance(function, types.FunctionType):
        return "", []
    read = dict(read_by(function, names_in(function.__code__)))
    plain = {name: constant_value(one) for name, one in read.items()}
    constants = "\n".join(f"{name}={one!r}" for name, one in plain.items() if type(one) in PLAIN)
    return constants, [one for one in read.values() if is_kernel(one)]


def constant_value(value: Any) -> Any:
    """Return the value of a constant of Triton's."""
    return getattr(value, "value", None) if type(value).__module__.startswith("triton.") else value


def kernel_lines(kernel: Any, text: Callable[[Any], str]) -> Iterator[str]:
    """Yield the configurations and settings of a kernel, or of what tunes it. ``text``: returns a value's
    text."""
    configurations = sorted(str(one) for one in getattr(kernel, "configs", None) or ())
    yield from (line for line in configurations if " at 0x" not in line)
    yield from (f"{part} {text(one)}" for part, one in _settings_of(kernel))


_TOLD_TO_TRITON = (
    *("do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug"),
    *("values", "reset_to_zero", "restore_value", "keys", "early_config_prune", "perf_model"),
    "configs_top_k",
)
"""Attributes of Triton's objects (3.6, 3.9) that have what a program told its decorators."""


def _settings_of(kernel: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a program tells ``triton.jit``, ``triton.autotune`` and ``triton.heuristics`` about launches
    beside the source and the configurations: the functions that return constants or choose configurations,
    the arguments that are reset, and the user's hooks. What a tuner has measured so far is omitted: it
    differs in each process."""
    for part in _TOLD_TO_TRITON:
        if held := getattr(kernel, part, None):
            yield part, held
    for part in ("pre_hook", "post_hook"):
        if getattr(kernel, f"user_defined_{part}", False):
            yield part, getattr(kernel, part)
    for configuration in getattr(kernel, "configs", None) or ():
        if hook := getattr(configuration, "pre_hook", None):
            yield "pre_hook of a configuration", hook
