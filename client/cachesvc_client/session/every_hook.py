"""Lists every name of torch and Triton that cachesvc wraps in a service."""

from __future__ import annotations

from collections.abc import Iterator

from ..graphs import key_components, keys, operators
from ..hooks import counters
from ..hooks.table import Hook
from ..kinds import KINDS
from . import compile_hook, gc_pause


def every_hook() -> Iterator[Hook]:
    """Yield the rows of all rooms: those that a restore depends on first, those that only count last."""
    yield from compile_hook.HOOKS
    yield from keys.SAFETY_HOOKS
    yield from operators.HOOKS
    yield from gc_pause.HOOKS
    for kind in KINDS:
        yield from kind.hooks
    yield from key_components.HOOKS
    yield from counters.HOOKS
