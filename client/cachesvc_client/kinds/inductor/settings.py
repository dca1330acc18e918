"""Reads PyTorch's settings that keep a process from its own caches."""

from __future__ import annotations

import sys


def switched_off() -> str:
    """Return the setting that keeps PyTorch from its own caches in this process, or an empty text.

    Imports nothing.
    """
    settings = sys.modules.get("torch._inductor.config")
    if settings is None:
        return ""
    if settings.force_disable_caches:
        return "force_disable_caches"
    return "" if settings.fx_graph_cache else "fx_graph_cache=False"
