"""Lists every name of torch and Triton that cachesvc wraps in a service."""

from __future__ import annotations

from collections.abc import Iterator

from ..hooks.table import Hook
from ..kinds import KINDS
from . import compile_hook, gc_pause


def every_hook() -> Iterator[Hook]:
    """Yield the rows of all rooms: those around a compile first, then those of each kind."""
    yield from compile_hook.HOOKS
    yield from gc_pause.HOOKS
    for kind in KINDS:
        yield from kind.hooks
