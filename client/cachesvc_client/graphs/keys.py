"""Adds to PyTorch's own cache keys what they lack, and says whether these hooks are in place.

PyTorch makes a key of all attributes of a *details* object: ``FxGraphHashDetails`` for a graph that Inductor
compiles, and its subclass ``AOTAutogradCacheDetails`` for a graph as Dynamo traced it. An attribute that is
set after ``__init__`` is in the key. The comparison of fingerprints cannot replace such a hook: an attach by
name does not know the graph before the compile.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from ..hooks import imports
from ..hooks.table import Hook

_log = logging.getLogger("cachesvc")

Parts = Callable[[Any, Any], Mapping[str, Any]]
"""Takes the details object and the graph; returns what the key shall hold, by name. It may raise."""
_MARK = "_cachesvc_completes_key"
"""Attribute of a hooked ``__init__``, which says that the hook is in place."""


CORE = frozenset({"aten", "prim", "prims"})
"""Namespaces of PyTorch's own operators, whose code is in every key as torch's version."""
_UNSAFE = "nothing is restored, since code of other settings could be"
GRAPH_KEY = Hook(
    "torch._inductor.codecache",
    "FxGraphHashDetails.__init__",
    "adds to the key of a graph what PyTorch's key lacks",
    _UNSAFE,
    role="safety",
)
AUTOGRAD_KEY = Hook(
    "torch._functorch._aot_autograd.autograd_cache",
    "AOTAutogradCacheDetails.__init__",
    "adds to the key of a traced graph what PyTorch's key lacks",
    _UNSAFE,
    role="safety",
)
SAFETY_HOOKS = (GRAPH_KEY, AUTOGRAD_KEY)
"""Functions of PyTorch that must be hooked: without the hook a false hit is possible."""


def complete(hook: Hook, parts: Parts) -> None:
    """Put ``parts`` into the key that ``hook`` makes, from the import of its module on.

    An attribute that PyTorch has set itself stays. If ``parts`` raises, the key becomes one that no other
    compile has: a doubt is a miss.
    """
    hook.watch(functools.partial(_install, hook, parts))


def missing_here() -> str | None:
    """Return the line that says which safety hook is not in place in this process; ``None`` if all are.

    Only the hooks count whose modules are imported. To be called when a compile begins.
    """
    for hook in SAFETY_HOOKS:
        module = sys.modules.get(hook.module)
        if module is not None and not _is_installed(hook, module):
            return _refusal(hook)
    return None


def graph_modules(graph: Any) -> Iterator[Any]:
    """Yield a graph and the graphs inside it: a checkpointed region or a branch has a graph of its own."""
    import torch

    modules = graph.modules() if graph is not None else ()
    return (inner for inner in modules if isinstance(inner, torch.fx.GraphModule))


def graph_nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for inner in graph_modules(graph):
        yield from inner.graph.nodes


@functools.cache
def nonce(reason: str) -> str:
    """Return a text that no other process has: ``reason`` with random digits, the same at each call."""
    return f"{reason} ({os.urandom(6).hex()})"


def _class_of(hook: Hook) -> str:
    """Return the name of the class whose ``__init__`` the hook is on."""
    return hook.path.partition(".")[0]


def _refusal(hook: Hook) -> str:
    return (
        f"hook {hook.name} is missing in this torch: without it code that was compiled under other settings "
        "could be restored; use a torch that cachesvc was tested on"
    )


def _install(hook: Hook, parts: Parts, module: ModuleType) -> None:
    if imports.hook(module, hook.path, functools.partial(_add_parts, parts)):
        setattr(getattr(module, _class_of(hook)).__init__, _MARK, True)
    else:
        _log.warning("%s", _refusal(hook))


def _add_parts(parts: Parts, call: imports.Call) -> None:
    call()
    details = call.args[0]
    graph = call.args[1] if len(call.args) > 1 else call.kwargs.get("gm")
    for name, value in _parts(parts, details, graph).items():
        if not hasattr(details, name):
            setattr(details, name, value)


def _parts(parts: Parts, details: Any, graph: Any) -> Mapping[str, Any]:
    try:
        return dict(parts(details, graph))
    except Exception:  # noqa: BLE001 - a torch whose internals differ
        _log.debug("what a key lacks is not known: no other process has this key", exc_info=True)
        # Not `nonce`: this process may have another setting at the next compile of the same graph.
        return {"cachesvc": f"not known ({os.urandom(6).hex()})"}


def _is_installed(hook: Hook, module: ModuleType) -> bool:
    function = getattr(getattr(module, _class_of(hook), None), "__init__", None)
    while function is not None:
        if getattr(function, _MARK, False):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
