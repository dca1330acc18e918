"""Owns the hook around ``compile_fx``, the function of Inductor that compiles one graph.

`attach` imports this module on the application's own thread. The module imports nothing of the compilers.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType

from ..hooks import imports
from ..wire.errors import CacheSvcError

_log = logging.getLogger("cachesvc")


def hook_compiles(body: imports.Body) -> None:
    """Run ``body`` in the place of ``compile_fx``; its ``CacheSvcError`` reaches the application."""
    imports.when_imported("torch._inductor.compile_fx", functools.partial(_hook_compile_fx, body))


def _hook_compile_fx(body: imports.Body, module: ModuleType) -> None:
    if not imports.hook(module, "compile_fx", body, reaches=(CacheSvcError,)):
        _log.warning("this torch has no compile_fx where it is expected: no compile will wait")
