"""Tells the folders that SGLang chooses for other compilers from those that a user named.

``import sglang`` names folders below ``SGLANG_CACHE_DIR`` for Triton, Inductor, the CUDA driver and TileLang,
where their variables name none (``redirect_third_party_caches`` in ``sglang.srt.environ``, read in 0.5.23).
Such a value names no folder of the user's: what lies there was left by any process, and a process that
attached before ``import sglang`` would not see it.
"""

from __future__ import annotations

import sys

_MODULE = "sglang.srt.environ"


def chose(variable: str, value: str) -> bool:
    """Return whether SGLang chose this value of a variable in this process. Never raises."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return False
    try:
        return bool(module.third_party_cache_defaults().get(variable) == value)
    except Exception:  # noqa: BLE001 - another release: then the value is the user's
        return False
