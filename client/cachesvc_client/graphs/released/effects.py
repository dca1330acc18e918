"""Finds operators of PyTorch's own of which a program says that they have an effect, or have none.

Calls of an operator with an effect keep their order and are not omitted: another graph is compiled.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from typing import Any

from ..keys import CORE
from . import presence, source

_MODULE = "torch._higher_order_ops.effects"
_REGISTERED = re.compile(r"_register_effectful_op\(\s*\"([\w:.]+)\"|torch\.ops\.(\w+)\.(\w+)\.default[:,]")
"""Matches an operator of which the text of torch's own module says which effect it has."""


def changed() -> Iterator[tuple[str, Any]]:
    """Yield place and effect for each operator of PyTorch's own whose effect is another one than released."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return
    own = _named_in(str(module.__file__))
    for name, effect, default in sorted(_entries(module), key=lambda entry: entry[0]):
        is_given = effect is not default
        if is_given and name not in own:
            yield f"the effect of {name}", effect if effect is not None else presence.REMOVED
        elif not is_given and name in own:
            yield f"the effect of {name}", presence.REMOVED


@functools.cache
def _named_in(file: str) -> frozenset[str]:
    """Return the operators of whose effect the text of torch's own module says something."""
    found = _REGISTERED.findall(source.source(file).text)
    return frozenset(name or f"{space}::{operator}" for name, space, operator in found)


def _entries(module: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield for each operator of PyTorch's own its name, its effect, and that which its schema says."""
    registry = getattr(sys.modules.get("torch._library.simple_registry"), "singleton", None)
    for name, entry in list(getattr(registry, "_data", {}).items()):
        holder = getattr(entry, "effect", None)
        if holder is not None and _is_of_core(name):
            yield name, holder.effect, type(holder)(name).effect
    for operator, effect in list(getattr(module, "SIDE_EFFECTS", {}).items()):  # up to torch 2.9
        name = str(getattr(operator, "_name", operator))
        if _is_of_core(name):
            yield name.removesuffix(".default"), effect, None


def _is_of_core(name: str) -> bool:
    return name.partition("::")[0] in CORE
