"""Finds a host library of Triton's that was built on another host."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType
from typing import cast

from .versions import ARCHITECTURES

_log = logging.getLogger("cachesvc")


def load_prebuilt(source: str, name: str) -> ModuleType | None:
    """Load the host library of this source, if the cache folder has it under the name that Triton gives it
    here or on a host with more or fewer programs. Never raises.

    Triton's name holds what ``platform.architecture()`` answers, which asks the program ``file``: a slim
    image without that program would look elsewhere than its builder, and run gcc.
    """
    import hashlib
    import platform
    import sysconfig

    try:
        from triton import knobs
        from triton.runtime import build, cache

        if knobs.cache.manager_class not in (None, cache.FileCacheManager):
            return None
        for architecture in ARCHITECTURES:
            host = ",".join((platform.machine(), platform.system(), *architecture))
            folder = cache._base32(hashlib.sha256((source + host).encode()).hexdigest())
            path = Path(knobs.cache.dir, folder, name + str(sysconfig.get_config_var("EXT_SUFFIX")))
            if path.is_file():
                return cast(ModuleType, build._load_module_from_path(name, str(path)))
    except Exception:  # noqa: BLE001 - Triton looks and builds by itself
        _log.debug("%s: left to Triton", name, exc_info=True)
    return None
