"""Puts into PyTorch's keys what a graph depends on and is not torch's own as it was released.

On a torch as it was released, a graph that calls nothing of an application's has the key that PyTorch gives
it.
Where something has no description that holds in other processes, the key is one that no other process has,
and
the reason names it: never is something omitted.
"""

from __future__ import annotations

from typing import Any

from ..hooks import imports
from ..hooks.table import Hook
from .keys import AUTOGRAD_KEY, complete, nonce
from .released import birth, in_place

REPLACED = "replaced_in_torch"
"""Name of the part in a key: what a program put in the place of torch's own."""
CALLED = "called_code"
"""Name of the part in a key: the code of the application that a trace of the graph runs."""
UNKNOWN = "not_kept"
"""Name of the part in a key that no other process has: why nothing can be kept under it."""
PARTS = {
    REPLACED: "what the program replaced in torch",
    CALLED: "code that the graph calls",
    UNKNOWN: "not kept",
}
"""Names that parts have in a key -> words for a reason of an outcome."""
_SUBCLASS = Hook(
    AUTOGRAD_KEY.module,
    "AOTAutogradCachePickler._default_stable_hash_for_caching",
    "puts the sets that a tensor subclass says of itself into a key in one order",
    "a graph of a tensor subclass whose metadata hold a set is traced again in most processes",
    since="2.12",
    role="speed",
)
_PATTERN = Hook(
    "torch._inductor.pattern_matcher",
    "PatternEntry.register",
    "notes the patterns that Inductor searches for, to see which of them a program removes",
    "a pattern that a program removes before its first compile is not seen",
    role="safety",
)
HOOKS = (_SUBCLASS, _PATTERN)


def install_hooks() -> None:
    """Put the hooks in place when the application imports the modules. Safe to call again."""
    in_place.watch()
    birth.watch()
    complete(AUTOGRAD_KEY, of_graph)
    _SUBCLASS.install(_hash_subclass)
    _PATTERN.install(_note_pattern)


def _hash_subclass(call: imports.Call) -> Any:
    from . import set_order  # here and below: `attach` loads nothing that a compile alone needs

    return set_order.hash_subclass(call)


def _note_pattern(call: imports.Call) -> Any:
    from .released import patterns

    return patterns.note(call)


def of_torch(_: Any, __: Any) -> dict[str, Any]:
    """Return the part of a key for what a program changed in torch; nothing for torch as released."""
    from .released import comparison

    changes = comparison.changes()
    parts: dict[str, Any] = {REPLACED: changes.texts} if changes.described else {}
    return parts | ({UNKNOWN: nonce(changes.unknown)} if changes.unknown else {})


def of_graph(details: Any, graph: Any) -> dict[str, Any]:
    """Return the part of AOTAutograd's key for a graph that depends on code of the application's."""
    from .code import targets

    texts, unknown = targets.describe(graph, getattr(details, "example_inputs", None) or ())
    parts: dict[str, Any] = {CALLED: texts} if texts else {}
    return parts | ({UNKNOWN: nonce(unknown)} if unknown else {})
