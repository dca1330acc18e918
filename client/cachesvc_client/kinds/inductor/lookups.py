"""Asks for the graph of a key that PyTorch looked up and did not find, and has PyTorch look again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...hooks import imports
from ...hooks.table import Hook

_IF_MISSING = "under a name with many entries, a graph that the start did not restore is compiled"
_AUTOGRAD_LOOKUP = Hook(
    "torch._functorch._aot_autograd.autograd_cache",
    "AOTAutogradCache._lookup",
    "asks the registry for a traced graph that was looked up and not found",
    _IF_MISSING,
    role="speed",
)
_GRAPH_LOOKUP = Hook(
    "torch._inductor.codecache",
    "FxGraphCache._lookup_graph",
    "asks the registry for a graph that was looked up and not found",
    _IF_MISSING,
    role="speed",
)
HOOKS = (_AUTOGRAD_LOOKUP, _GRAPH_LOOKUP)


def install_hooks(missed: Callable[[str], bool]) -> None:
    """Put the hooks in place. ``missed``: takes a key that was not found, and returns whether to look again;
    called until it returns false, since the guards of a dynamic graph may fit another revision's."""

    def autograd_lookup(call: imports.Call) -> Any:
        return _look(call, missed, lambda answer: answer is None)

    def graph_lookup(call: imports.Call) -> Any:
        return _look(call, missed, lambda answer: answer[0] is None)

    _AUTOGRAD_LOOKUP.install(autograd_lookup)
    _GRAPH_LOOKUP.install(graph_lookup)


def _look(call: imports.Call, missed: Callable[[str], bool], absent: Callable[[Any], bool]) -> Any:
    answer = call()
    while absent(answer) and missed(str(call.argument("key"))):
        answer = call.original(*call.args, **call.kwargs)
    return answer
