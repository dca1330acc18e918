"""Owns the hook around ``compile_fx``, the function of Inductor that compiles one graph.

`attach` imports this module on the application's own thread. The module imports nothing of the compilers.
"""

from __future__ import annotations

from ..hooks import imports
from ..hooks.table import Hook
from ..wire.errors import CacheSvcError

_COMPILE = Hook(
    "torch._inductor.compile_fx",
    "compile_fx",
    "waits for the restore before the first compile",
    "no compile waits, so nothing may be restored in time",
    role="restore",
    warns=True,
)
HOOKS = (_COMPILE,)


def hook_compiles(body: imports.Body) -> None:
    """Run ``body`` in the place of ``compile_fx``; its ``CacheSvcError`` reaches the application."""
    _COMPILE.install(body, reaches=(CacheSvcError,))
