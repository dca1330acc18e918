"""Lists every name of torch and Triton that cachesvc wraps in a service, and asks what may be restored
there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..environment.support import Support, decide
from ..graphs import backend_names, door, key_components, keys, operators
from ..hooks import counters
from ..hooks.table import Hook
from ..kinds import KINDS, own_place
from ..kinds.kind import Kind
from ..wire.factors import Fingerprint
from . import events, gc_pause

_OF_EVERY_ENTRY = (*events.HOOKS, *keys.SAFETY_HOOKS, *operators.HOOKS)
"""Hooks without which an entry is not safe, or not restored in time, whatever its kinds are."""


def every_hook(kinds: Iterable[Kind] = KINDS) -> Iterator[Hook]:
    """Yield the rows of all rooms: those that a restore depends on first, those that only count last."""
    yield from _OF_EVERY_ENTRY
    for kind in kinds:
        yield from kind.hooks
    yield from own_place.HOOKS
    yield from gc_pause.HOOKS
    yield from key_components.HOOKS
    yield from backend_names.HOOKS
    yield from door.HOOKS
    yield from counters.HOOKS


def support_of(fingerprint: Fingerprint) -> Support:
    """Return what may be restored in the environment of a fingerprint. Never raises."""
    return decide(fingerprint, (*_OF_EVERY_ENTRY, *counters.HOOKS), {kind.name: kind.hooks for kind in KINDS})
