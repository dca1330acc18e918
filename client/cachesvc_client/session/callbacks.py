"""Owns `SessionCallbacks`: what a session asks of the process that it belongs to.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from .options import AttachOptions

if TYPE_CHECKING:
    from ..outcome.judge import Report


class SessionCallbacks(NamedTuple):
    """The actions on the whole process that a session asks for. `Sessions` provides them."""

    arm: Callable[[], None]
    """Put the hooks in place."""
    disarm: Callable[[], None]
    """Take the hooks out, because this torch is refused."""
    attach_count: Callable[[AttachOptions], int]
    """Count how often this process has attached to the same target."""
    demand_bound_keys: Callable[[], None]
    """Raise ``InvalidRequest`` if a trusted key must say for which namespace it is trusted."""
    exiting: Callable[[], bool]
    """Return whether the process ends, so that nothing is logged any more."""
    report: Callable[[], Report]
    """Make the report of the process."""
    start_watch: Callable[[], None]
    """Start the thread that reports when the compilers pause."""
