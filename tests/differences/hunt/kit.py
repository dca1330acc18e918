"""Helpers that the modules of cases import."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CHANGED = False
"""Whether the fact is another one in this process; set before the module of a case is imported."""


def ramp(*shape: int) -> torch.Tensor:
    """Return a tensor of numbers from -0.5 on."""
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count, dtype=torch.float32) / 50 - 0.5).reshape(shape)


def swap(holder: Any, name: str, value: Any) -> None:
    """Set an attribute, also where the holder is a mapping."""
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


def shifted(value: Any) -> Any:
    """Return other numbers of the same types and shapes."""
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.bool:
            return value.logical_not()
        return value * 2 + 1 if value.dtype.is_floating_point or value.dtype.is_complex else value + 1
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(shifted(one) for one in value)
    return value


def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns other numbers than ``original``; its own calls of it are plain."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return shifted(original(*args, **kwargs))

    return replacement


def doubled(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns twice the numbers: an operator more, and no branch."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        return torch.add(out, out)

    return replacement


def double_first(_self: Any, x: torch.Tensor) -> torch.Tensor:
    """Stand for a forward."""
    return x * 2


class Replacement:
    """Is a callable object in the place of a function."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return shifted(self.original(*args, **kwargs))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def saved(module_file: str) -> Any:
    """Return the object that was saved for a case."""
    return torch.load(Path(module_file).with_suffix(".pt"), weights_only=False)


def library(module_file: str, name: str) -> None:
    """Put the folder of one version of a library first on the path."""
    version = "2" if CHANGED else "1"
    sys.path.insert(0, os.path.join(os.path.dirname(module_file), f"{name}_v{version}"))


def twice(call: Callable[..., Any], between: Callable[[], Any], *inputs: Any) -> Any:
    """Return the answers before and after something is done."""
    first = call(*inputs)
    between()
    return first, call(*inputs)


@contextlib.contextmanager
def quiet() -> Any:
    """Give no warning."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
