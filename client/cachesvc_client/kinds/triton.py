"""The kind `triton`: Triton's cache folder.

``TRITON_CACHE_DIR``, by default ``~/.triton/cache``; Inductor points it at ``<inductor>/triton/<device>``.
Layout, read in Triton 3.6::

    <KEY>/<kernel>.{ttir,ttgir,llir,ptx,cubin,json,...}    immutable
    <KEY>/__grp__<kernel>.json                             {"child_paths": {name: absolute path}}
    <KEY>/<module>.<abi>.so                                launcher and driver helpers, built with gcc

The group files hold absolute paths, so a moved folder is a miss (triton, pytorch-facts 3): they
travel with a placeholder. The key is in the paths' last two parts, whatever the folder was called.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from .. import importhook
from .rules import FileRule, KindRules

_log = logging.getLogger("cachesvc")

NAME = "triton"
VARIABLE = "TRITON_CACHE_DIR"
PLACEHOLDER = "{cachesvc:triton}"


def _map_children(data: bytes, change: Callable[[PurePosixPath], str]) -> bytes:
    try:
        group = json.loads(data)
        children = group["child_paths"]
    except (ValueError, KeyError, TypeError):
        return data
    mapped = {name: change(PurePosixPath(path)) for name, path in children.items()}
    return json.dumps({**group, "child_paths": mapped}).encode()


def _portable(data: bytes, root: Path) -> bytes:
    del root
    return _map_children(data, lambda path: "/".join((PLACEHOLDER, *path.parts[-2:])))


def _local(data: bytes, root: Path) -> bytes:
    return _map_children(data, lambda path: str(root.joinpath(*path.parts[-2:])))


_KEY = r"[A-Z2-7]{20,64}"
RULES = KindRules(
    NAME,
    (
        FileRule(
            re.compile(_KEY + r"/__grp__[A-Za-z0-9_.+-]{1,200}\.json"),
            portable=_portable,
            local=_local,
            last=True,
        ),
        FileRule(
            re.compile(
                _KEY + r"/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,200}"
                r"\.(json|ttir|ttgir|llir|ptx|cubin|hsaco|amdgcn|source|so)"
            )
        ),
    ),
)


class Recorded:
    """The kernels that this process compiled or loaded outside of Inductor's workers."""

    def __init__(self) -> None:
        self.folders: set[Path] = set()

    def paths(self, root: Path) -> set[str]:
        """Relative paths of every file of those kernels under ``root``."""
        found: set[str] = set()
        for folder in list(self.folders):
            if folder.parent == root and folder.is_dir():
                found.update(f"{folder.name}/{entry.name}" for entry in os.scandir(folder) if entry.is_file())
        return found


def install_hooks(recorded: Recorded, before_compile: Callable[[], None]) -> None:
    """Puts the hooks in place when the application imports Triton. Safe to call again.

    ``before_compile`` runs before the first compilation of a kernel that is launched without Inductor.
    """
    importhook.when_imported("triton.knobs", functools.partial(_hook_knobs, recorded, before_compile))


def _hook_knobs(recorded: Recorded, before_compile: Callable[[], None], knobs: ModuleType) -> None:
    compilation, runtime = getattr(knobs, "compilation", None), getattr(knobs, "runtime", None)
    if compilation is not None:
        compilation.listener = _chained_listener(getattr(compilation, "listener", None), recorded)
    if runtime is not None and hasattr(runtime, "jit_cache_hook"):
        runtime.jit_cache_hook = _chained_jit(runtime.jit_cache_hook, before_compile)


def _chained_listener(previous: Any, recorded: Recorded) -> Callable[..., None]:
    def listener(**event: Any) -> None:
        for path in (event.get("metadata_group") or {}).values():
            recorded.folders.add(Path(path).parent)
        if previous is not None:
            previous(**event)

    return listener


def _chained_jit(previous: Any, before_compile: Callable[[], None]) -> Callable[..., Any]:
    def jit_cache_hook(**event: Any) -> Any:
        before_compile()
        return previous(**event) if previous is not None else None

    return jit_cache_hook
