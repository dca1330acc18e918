"""Puts into both of PyTorch's keys how the loaded torch differs from its release.

On a torch as it was released nothing is added. Where a difference has no description that holds in other
processes, the key is one that no other process has, and the reason names the place.
"""

from __future__ import annotations

from typing import Any

from . import released
from .keys import GRAPH_KEY, complete, nonce

REPLACED = "replaced_in_torch"
"""Name of the part in a key: what a program put in the place of torch's own."""
UNKNOWN = "not_kept"
"""Name of the part in a key that no other process has: why nothing can be kept under it."""


def install_hooks() -> None:
    """Put the hooks in place when the application imports the modules. Safe to call again."""
    complete(GRAPH_KEY, of_torch)  # AOTAutograd's key inherits it


def of_torch(_: Any, __: Any) -> dict[str, Any]:
    """Return the part of a key for what a program changed in torch; nothing for torch as released."""
    changes = released.changes()
    parts: dict[str, Any] = {REPLACED: changes.texts} if changes.described else {}
    return parts | ({UNKNOWN: nonce(changes.unknown)} if changes.unknown else {})
