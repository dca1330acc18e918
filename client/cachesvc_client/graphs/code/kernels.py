"""Reads Triton kernels of the application: what tunes them, and the constants and kernels that they read."""

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


def tuner_lines(tuner: Any, text: Callable[[Any], str]) -> Iterator[str]:
    """Yield the configurations and settings of what tunes a kernel. ``text``: what returns a value's text."""
    configurations = sorted(str(one) for one in getattr(tuner, "configs", None) or ())
    yield from (line for line in configurations if " at 0x" not in line)
    yield from (f"{part} {text(one)}" for part, one in settings_of_tuner(tuner))


def settings_of_tuner(tuner: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a ``triton.autotune`` or ``triton.heuristics`` does to a launch beside its configurations:
    the functions that return constants, the arguments that it resets, and the user's hooks. What it has
    measured so far is omitted: it differs in each process."""
    for part in ("values", "reset_to_zero", "restore_value"):
        if held := getattr(tuner, part, None):
            yield part, held
    for part in ("pre_hook", "post_hook"):
        if getattr(tuner, f"user_defined_{part}", False):
            yield part, getattr(tuner, part)
    for configuration in getattr(tuner, "configs", None) or ():
        if hook := getattr(configuration, "pre_hook", None):
            yield "pre_hook of a configuration", hook
